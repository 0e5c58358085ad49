"""Rewards from papers on agents with code and tools: AFM, ToRL, ReTool and ToolRL."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.dialects.toolrl import find_block_names, parse_answer_calls
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import CallOutcome, MalformedCall, Reward, Task, Trajectory, UserError


class FormattedVerdictReward(StatelessReward):
    """AFM's reward (arXiv 2508.13167): r_correct if the rollout is well-formed, else 0."""

    name = "answer_format"

    def __init__(self, correct: Reward) -> None:
        self.correct = correct

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [
            None if score is None else score * trajectory.well_formed
            for trajectory, score in zip(group, self.correct(group), strict=True)
        ]


class SignedVerdictReward(StatelessReward):
    """Reward of ToRL (arXiv 2503.23383) and ReTool (arXiv 2504.11536): 1 for a correct answer, -1
    for a wrong or missing one."""

    name = "plus_minus"

    def __init__(self, correct: Reward) -> None:
        self.correct = correct

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [None if score is None else 2 * score - 1 for score in self.correct(group)]


class ExecutablePenalty(StatelessReward):
    """ToRL's penalty for code that does not run (arXiv 2503.23383): -1 for a rollout with a failed
    or malformed call, else 0. The paper's weight is 0.5. A call to an unavailable tool is not
    counted as a failure of the rollout."""

    name = "executable"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        bad = (CallOutcome.FAILED, CallOutcome.MALFORMED)
        return [-float(any(call.outcome in bad for call in t.calls)) for t in group]


NamedCall = tuple[str, Mapping[str, Any]]  # tool name and arguments


class _CallComparisonReward(StatelessReward):
    """Base class of scores that compare the calls of a rollout with the expected calls of its task.
    The score is None for a task without `meta["calls"]`."""

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [self._score_or_none(trajectory) for trajectory in group]

    def _score_or_none(self, trajectory: Trajectory) -> float | None:
        wanted = _read_wanted_calls(trajectory.task)
        return (
            None if wanted is None else self._score(trajectory, wanted, _collect_calls(trajectory))
        )

    @abstractmethod
    def _score(
        self, trajectory: Trajectory, wanted: list[NamedCall], calls: list[NamedCall] | None
    ) -> float:
        """Return the score of a trajectory; `calls` is None if a call is malformed."""


class ToolRLReward(_CallComparisonReward):
    """ToolRL's score of the calls of a rollout (arXiv 2504.13958): 6 R / S - 3, from -3 to 3.

    `task.meta["calls"]` lists the expected calls as {"name": ..., "arguments": {...}}. They are
    compared with the calls of the rollout or, in the dialect `toolrl`, which executes none, with
    the calls in its answer. R is r_name, the Jaccard index of the tool names as multisets, plus,
    for each expected call that is matched, the Jaccard index of the argument names and the number
    of equal values. S, the maximum of R, is 1 + the number of expected calls + the number of their
    arguments. Calls with the same name are matched greedily, most similar first; the paper
    maximises over all matchings, but its code is greedy. As in that code, a malformed call gives
    -3, and a task that expects no calls gives 0. A task without `calls` gives None.

    The paper's reward is the sum of this one and `toolrl_format`, both with weight 1.
    """

    name = "toolrl"

    def _score(
        self, trajectory: Trajectory, wanted: list[NamedCall], calls: list[NamedCall] | None
    ) -> float:
        if not wanted:
            return 0.0
        if calls is None:
            return -3.0
        return 6 * compute_call_score(wanted, calls) / _max_call_score(wanted) - 3


class ToolRLFormatReward(StatelessReward):
    """ToolRL's format score (arXiv 2504.13958): 1 for a well-formed rollout whose answer has the
    same blocks (calls, a response, or both) as a gold answer, else 0. Without gold answers, any
    blocks are accepted."""

    name = "toolrl_format"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [float(_has_layout(trajectory)) for trajectory in group]


class ToolRLExactReward(_CallComparisonReward):
    """Reward of 1 for the format of `toolrl_format` and exactly the expected calls, in any order
    and with the same arguments, else 0. None for a task without `meta["calls"]`."""

    name = "toolrl_exact"

    def _score(
        self, trajectory: Trajectory, wanted: list[NamedCall], calls: list[NamedCall] | None
    ) -> float:
        if calls is None or not _has_layout(trajectory):
            return 0.0
        return float(
            compute_call_score(wanted, calls) == _max_call_score(wanted) if wanted else not calls
        )


def _has_layout(trajectory: Trajectory) -> bool:
    golds = trajectory.task.answers
    blocks = find_block_names(trajectory.answer or "")
    return trajectory.well_formed and (not golds or blocks in map(find_block_names, golds))


def _read_wanted_calls(task: Task) -> list[NamedCall] | None:
    wanted = task.meta.get("calls")
    return None if wanted is None else [_parse_wanted_call(call, task.id) for call in wanted]


def _collect_calls(trajectory: Trajectory) -> list[NamedCall] | None:
    """Return the calls of a trajectory; None if one is malformed."""
    calls: list[NamedCall] = []
    for call in trajectory.calls or parse_answer_calls(trajectory.answer or ""):
        if isinstance(call, MalformedCall) or not call.tool:
            return None
        calls.append((call.tool, call.arguments))
    return calls


def _max_call_score(wanted: Sequence[NamedCall]) -> int:
    """Return ToolRL's S."""
    return 1 + len(wanted) + sum(len(arguments) for _, arguments in wanted)


def compute_call_score(wanted: Sequence[NamedCall], calls: Sequence[NamedCall]) -> float:
    """Return ToolRL's R for the given calls."""
    names, call_names = (Counter(name for name, _ in side) for side in (wanted, calls))
    score = (names & call_names).total() / (names | call_names).total()
    pairs = [
        (_similarity(arguments, given), i, j)
        for i, (name, arguments) in enumerate(wanted)
        for j, (other, given) in enumerate(calls)
        if name == other
    ]
    taken: set[int] = set()
    matched: set[int] = set()
    for value, i, j in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
        if i not in matched and j not in taken:
            matched.add(i)
            taken.add(j)
            score += value
    return score


def _similarity(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    """Return the Jaccard index of the argument names of two calls plus the number of equal values.
    Two calls without arguments are equal."""
    all_keys = wanted.keys() | given.keys()
    shared = wanted.keys() & given.keys()
    jaccard = len(shared) / len(all_keys) if all_keys else 1.0
    return jaccard + sum(wanted[key] == given[key] for key in shared)


def _parse_wanted_call(call: Any, task: str) -> NamedCall:
    match call:
        case {"name": str(name), "arguments": dict(arguments)}:
            return name, arguments
    raise UserError(
        f"the expected calls of task '{task}' cannot be parsed: write each in the metadata as"
        ' {"name": "...", "arguments": {...}}.'
    )
