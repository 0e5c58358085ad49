"""Conversion of verifiers traces to trajectories, token for token.

A trace is a graph of messages, each with the tokens that it adds. A path from a root to a leaf is
one context of the policy, so it is a chain. Messages shared by two chains were sampled once, and
are trained once: in the second chain they are part of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fieldcraft.environments.environments import EnvironmentContractError
from fieldcraft.extensions.external_envs.policy_session import SampledTurn
from fieldcraft.types import Author, Segment, Tokenizer, Trajectory

TraceNode = Mapping[str, Any]


@dataclass(frozen=True)
class TraceReader:
    """Reader of the traces of one rollout. `turns` are the turns that the policy sampled for it."""

    turns: Sequence[SampledTurn]
    tokenizer: Tokenizer

    def append_trace(self, trajectory: Trajectory, trace: Mapping[str, Any]) -> None:
        """Append the chains of a trace.

        Raises EnvironmentContractError for tokens that the policy did not sample at this position.
        """
        seen: set[int] = set()
        for path in trace["branches"]:
            new = [
                index for index in path if index not in seen and any(trace["nodes"][index]["mask"])
            ]
            if not new:
                continue
            node_indices = path[: path.index(new[-1]) + 1]  # later messages are not needed
            if trajectory.segments:
                trajectory.folds.append(len(trajectory.segments))
            trajectory.segments += self._iter_segments(trace["nodes"], node_indices, seen)
            seen.update(node_indices)

    def _iter_segments(
        self, nodes: Sequence[TraceNode], node_indices: Sequence[int], seen: set[int]
    ) -> Iterator[Segment]:
        """Yield the segments of a path. Messages seen before, and those before the first turn, are
        its prompt."""
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
        """Yield the turns sampled after `prefix_ids`: one, or several directly after each
        other."""
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
            "the trace contains tokens that the policy did not sample there"
        )
