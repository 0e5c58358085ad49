"""Matching of tool results to calls, by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class UnmatchedResultError(Exception):
    """Mismatch between results and calls, as in "a result of an unknown call"."""


class CallLabel(NamedTuple):
    """Label of a call or a result: the id of the call and the name of the tool. Either may be
    missing ("")."""

    call_id: str = ""
    tool: str = ""


def match_results(calls: Sequence[CallLabel], results: Sequence[CallLabel]) -> list[int]:
    """Return the index in `results` of each call's result.

    Ids take precedence. If neither calls nor results have ids, they are matched in order; their
    numbers must then be equal, and no tool names may contradict the order.

    Args:
        calls: calls of one turn.
        results: results before the next turn.

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
    """Raise UnmatchedResultError if results without ids may be in a different order."""
    if len(calls) != len(results):
        raise UnmatchedResultError("a different number of results than calls")
    for call, result in zip(calls, results, strict=True):
        if result.tool and call.tool != result.tool:
            raise UnmatchedResultError("results that are not in the order of the calls")
