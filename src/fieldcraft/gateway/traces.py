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

from fieldcraft.gateway.policy_session import SampledTurn
from fieldcraft.rollout.environments import EnvironmentContractError
from fieldcraft.types import Author, Segment, Tokenizer, Trajectory

TraceNode = Mapping[str, Any]


@dataclass(frozen=True)
class TraceReader:
    """Reader of the traces of one rollout. `turns` is what the policy sampled for it."""

    turns: Sequence[SampledTurn]
    tokenizer: Tokenizer

    def append_trace(self, trajectory: Trajectory, trace: Mapping[str, Any]) -> None:
        """Append the chains of a trace.

        Raises EnvironmentContractError for tokens that the policy did not sample there.
        """
        seen: set[int] = set()
        for path in trace["branches"]:
            new = [
                index for index in path if index not in seen and any(trace["nodes"][index]["mask"])
            ]
            if not new:
                continue
            node_indices = path[: path.index(new[-1]) + 1]  # what comes after is never read
            if trajectory.segments:
                trajectory.folds.append(len(trajectory.segments))
            trajectory.segments += self._iter_segments(trace["nodes"], node_indices, seen)
            seen.update(node_indices)

    def _iter_segments(
        self, nodes: Sequence[TraceNode], node_indices: Sequence[int], seen: set[int]
    ) -> Iterator[Segment]:
        """Yield the segments of a path: what is known, and what comes before the first turn, is its
        prompt."""
        tokens = [
            (i, sampled and index not in seen)
            for index in node_indices
            for i, sampled in zip(nodes[index]["ids"], nodes[index]["mask"], strict=True)
        ]
        prefix_ids: list[int] = []
        author = Author.PROMPT
        for sampled, group in groupby(tokens, key=lambda token: token[1]):
            ids = [i for i, _ in group]
            if sampled:
                yield from self._iter_turns(prefix_ids, ids)
                author = Author.TOOL
            else:
                yield Segment(author, ids, self.tokenizer.decode(ids))
            prefix_ids += ids

    def _iter_turns(self, prefix_ids: Sequence[int], ids: Sequence[int]) -> Iterator[Segment]:
        """Yield what was sampled behind `prefix_ids`: one turn, or several with nothing between
        them."""
        start = 0
        while start < len(ids):
            completion = self._find_completion([*prefix_ids, *ids[:start]], ids[start:])
            text = self.tokenizer.decode(completion.ids)
            yield Segment(
                Author.POLICY, completion.ids, text, completion.logprobs, completion.versions
            )
            start += len(completion.ids)

    def _find_completion(self, prefix_ids: Sequence[int], ids: Sequence[int]) -> Any:
        for turn in self.turns:
            length = len(turn.completion.ids)
            if (
                list(turn.prompt_ids) == list(prefix_ids)
                and turn.completion.ids == list(ids[:length])
                and length
            ):
                return turn.completion
        raise EnvironmentContractError(
            "the trace holds tokens that the policy did not sample there"
        )
