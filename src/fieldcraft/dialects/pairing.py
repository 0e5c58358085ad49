"""Results of tools in the order of the calls that they answer, told by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Unpaired(Exception):
    """Reason why results and calls do not belong together, as in "a result of an unknown call"."""


class Label(NamedTuple):
    """Name that a call or a result gives itself: the id of the call and the tool. Either may
    be missing ("")."""

    identity: str = ""
    tool: str = ""


def order_of_calls(calls: Sequence[Label], results: Sequence[Label]) -> list[int]:
    """Return the place among `results` of each call's result.

    Ids decide. Only where neither calls nor results have any, the first result is that of the first
    call, and so on; then there must be as many, and no tool's name may say otherwise.

    Args:
        calls: those of one turn.
        results: what came back before the next turn.

    Raises Unpaired.
    """
    made, answered = ([label.identity for label in side] for side in (calls, results))
    if not calls:
        raise Unpaired("a result without a call")
    if not any(made) and not any(answered):
        _refuse_other_order(calls, results)
        return list(range(len(calls)))
    if not all(made):
        raise Unpaired("a call without an id")
    if not all(answered):
        raise Unpaired("a result without the id of its call")
    if len({*made}) < len(made):
        raise Unpaired("two calls with the same id")
    if not {*answered} <= {*made}:
        raise Unpaired("a result of an unknown call")
    if len({*answered}) < len(answered):
        raise Unpaired("two results of one call")
    if len(answered) < len(made):
        raise Unpaired("a call without a result")
    return [answered.index(identity) for identity in made]


def _refuse_other_order(calls: Sequence[Label], results: Sequence[Label]) -> None:
    """Raise Unpaired where the order of results without ids can be another one."""
    if len(calls) != len(results):
        raise Unpaired("results that are not as many as the calls")
    for call, result in zip(calls, results, strict=True):
        if result.tool and call.tool != result.tool:
            raise Unpaired("results that are not in the order of the calls")
