"""Traces of verifiers as trajectories, token for token.

A trace is a graph of messages; each holds the tokens that it adds. A path from a root to a leaf is
what the policy read at once, so it is a chain. What two chains share was sampled once, and is
trained once: in the second one it is part of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fieldcraft.gateway.lines import Said
from fieldcraft.rollout.environments import EnvironmentDefect
from fieldcraft.types import Author, Segment, Tokenizer, Trajectory

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Reader:
    """Reader of the traces of one rollout. `said` is what the policy sampled for it."""

    said: Sequence[Said]
    tokenizer: Tokenizer

    def append(self, trajectory: Trajectory, trace: Mapping[str, Any]) -> None:
        """Append the chains of a trace.

        Raises EnvironmentDefect for tokens that the policy did not sample there.
        """
        known: set[int] = set()
        for path in trace["branches"]:
            new = [p for p in path if p not in known and any(trace["nodes"][p]["mask"])]
            if not new:
                continue
            places = path[: path.index(new[-1]) + 1]  # what comes after is never read
            if trajectory.segments:
                trajectory.folds.append(len(trajectory.segments))
            trajectory.segments += self._chain(trace["nodes"], places, known)
            known.update(places)

    def _chain(
        self, nodes: Sequence[Node], places: Sequence[int], known: set[int]
    ) -> Iterator[Segment]:
        """Yield the segments of a path: what is known, and what comes before the first turn, is its
        prompt."""
        tokens = [
            (i, sampled and place not in known)
            for place in places
            for i, sampled in zip(nodes[place]["ids"], nodes[place]["mask"], strict=True)
        ]
        read: list[int] = []
        author = Author.PROMPT
        for sampled, group in groupby(tokens, key=lambda token: token[1]):
            ids = [i for i, _ in group]
            if sampled:
                yield from self._turns(read, ids)
                author = Author.TOOL
            else:
                yield Segment(author, ids, self.tokenizer.decode(ids))
            read += ids

    def _turns(self, read: Sequence[int], ids: Sequence[int]) -> Iterator[Segment]:
        """Yield what was sampled behind `read`: one turn, or several with nothing between them."""
        begin = 0
        while begin < len(ids):
            done = self._find([*read, *ids[:begin]], ids[begin:])
            text = self.tokenizer.decode(done.ids)
            yield Segment(Author.POLICY, done.ids, text, done.logprobs, done.versions)
            begin += len(done.ids)

    def _find(self, read: Sequence[int], ids: Sequence[int]) -> Any:
        for said in self.said:
            length = len(said.done.ids)
            if list(said.read) == list(read) and said.done.ids == list(ids[:length]) and length:
                return said.done
        raise EnvironmentDefect("the trace holds tokens that the policy did not sample there")
