"""Results of tools in the order of the calls that they answer, told by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class UnmatchedResultError(Exception):
    """Reason why results and calls do not belong together, as in "a result of an unknown call"."""


class CallLabel(NamedTuple):
    """Name that a call or a result gives itself: the id of the call and the tool. Either may
    be missing ("")."""

    call_id: str = ""
    tool: str = ""


def match_results(calls: Sequence[CallLabel], results: Sequence[CallLabel]) -> list[int]:
    """Return the place among `results` of each call's result.

    Ids decide. Only where neither calls nor results have any, the first result is that of the first
    call, and so on; then there must be as many, and no tool's name may say otherwise.

    Args:
        calls: those of one turn.
        results: what came back before the next turn.

    Raises UnmatchedResultError.
    """
    call_ids, result_ids = ([label.call_id for label in side] for side in (calls, results))
    if not calls:
        raise UnmatchedResultError("a result without a call")
    if not any(call_ids) and not any(result_ids):
        _require_same_order(calls, results)
        return list(range(len(calls)))
    if not all(call_ids):
        raise UnmatchedResultError("a call without an id")
    if not all(result_ids):
        raise UnmatchedResultError("a result without the id of its call")
    if len({*call_ids}) < len(call_ids):
        raise UnmatchedResultError("two calls with the same id")
    if not {*result_ids} <= {*call_ids}:
        raise UnmatchedResultError("a result of an unknown call")
    if len({*result_ids}) < len(result_ids):
        raise UnmatchedResultError("two results of one call")
    if len(result_ids) < len(call_ids):
        raise UnmatchedResultError("a call without a result")
    return [result_ids.index(identity) for identity in call_ids]


def _require_same_order(calls: Sequence[CallLabel], results: Sequence[CallLabel]) -> None:
    """Raise UnmatchedResultError where the order of results without ids can be another one."""
    if len(calls) != len(results):
        raise UnmatchedResultError("results that are not as many as the calls")
    for call, result in zip(calls, results, strict=True):
        if result.tool and call.tool != result.tool:
            raise UnmatchedResultError("results that are not in the order of the calls")
