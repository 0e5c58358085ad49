"""Faithfulness of simulated observations: against the truth of a world, or the real tool.

A call whose real observation cannot be told (a name that the world does not know, as a miswritten
query is; a tool that fails) has no verdict and is counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fieldcraft.rewards.answers import f1, normalise
from fieldcraft.terminal.figures import Figures
from fieldcraft.tools.search.passages import read_results
from fieldcraft.types import Call, Outcome, Tool, ToolError, ToolUnavailable, Trajectory, UserError
from fieldcraft.worlds.base import Verdict, Verdicts, simulated_calls

HEADS = {"holds": "holds", "contradicts": "contradicts", "well_formed": "form", "f1": "F1"}
RATES = tuple(HEADS)
LEGEND = {
    "calls": "simulated ones that were judged",
    "holds": "share that has what the real observation tells of the answer",
    "contradicts": "share that tells otherwise",
    "form": "share in the form of the real tool",
    "F1": "overlap with the words of the real observation",
    "no truth": "calls of which nobody knows a real observation",
    "EM\nsimulated": "share of right answers with simulated observations",
    "EM\nreal": "the same with real ones",
}


# -- against the real tool -----------------------------------------------------------------------


async def judge_by_tool(tool: Tool, trajectory: Trajectory) -> Verdicts:
    """Return a verdict on each simulated call by what the tool returns for it. `holds` looks at the
    gold answers that stand in the real text; where none does, it cannot be told."""
    golds = {normalise(gold) for gold in trajectory.task.answers} - {""}
    found: Verdicts = []
    for call in simulated_calls(trajectory):
        real = await _real_observation(tool, call)
        if real is None:
            found.append(None)
            continue
        there = {gold for gold in golds if _stands_in(gold, real)}
        found.append(
            Verdict(
                call.outcome is Outcome.OK and read_results(call.observation) is not None,
                any(_stands_in(gold, call.observation) for gold in there) if there else None,
                f1=f1(call.observation, [real]),
            )
        )
    return found


async def _real_observation(tool: Tool, call: Call) -> str | None:
    """Return the text that the real tool gives; None where it gives no results either. Raises
    UserError where it does not answer at all, for then nothing can be told of any simulation."""
    if call.tool != tool.name:
        return None
    try:
        return await tool(**call.arguments)
    except ToolUnavailable as error:
        raise UserError(
            f"the real tool '{tool.name}', which simulated results are compared with, does not"
            f" answer ({str(error).rstrip('.')}): start it and run the same command again."
        ) from error
    except ToolError:
        return None


def _stands_in(gold: str, text: str) -> bool:
    """Return whether the words of a normalised answer follow one another in a text."""
    return f" {gold} " in f" {normalise(text)} "


# -- summaries -----------------------------------------------------------------------------------


def summarise_fidelity(verdicts: Sequence[Verdict | None]) -> dict[str, Any]:
    """Return a summary of the verdicts: `n` judged observations and their rates, in all and for
    taught and untaught entities (None where there are none). `unknown` is how many have no verdict.
    A rate is None where nothing can be told; `holds_n` is how many observations `holds` could be
    told of."""
    judged = [verdict for verdict in verdicts if verdict is not None]
    parts = {
        "taught": [v for v in judged if v.taught is True],
        "untaught": [v for v in judged if v.taught is False],
    }
    return {
        **_rates(judged),
        "unknown": len(verdicts) - len(judged),
        **{name: _rates(part) if part else None for name, part in parts.items()},
    }


def _rates(judged: Sequence[Verdict]) -> dict[str, Any]:
    told = sum(verdict.holds is not None for verdict in judged)
    rates = {name: _mean(getattr(v, name) for v in judged) for name in RATES}
    return {"n": len(judged), "holds_n": told, **rates}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def fidelity_row(
    judge: Callable[[Trajectory], Verdicts | None], trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """Return the metrics of a simulated step: `fidelity/holds`, `fidelity/taught/holds`, ... Rates
    of nothing are left out; there are none at all where `judge` cannot tell what is true."""
    verdicts: Verdicts = []
    for trajectory in trajectories:
        judged = judge(trajectory)
        if judged is None:
            return {}
        verdicts += judged
    summary = summarise_fidelity(verdicts)
    row = {"fidelity/n": summary["n"], "fidelity/unknown": summary["unknown"]}
    for place, part in (("", summary), *((f"{p}/", summary[p]) for p in ("taught", "untaught"))):
        rates = {name: part[name] for name in RATES} if part else {}
        row |= {f"fidelity/{place}{k}": rate for k, rate in rates.items() if rate is not None}
    return row


def fidelity_table(found: Mapping[str, Mapping[str, Any]]) -> Figures:
    """Return rows for each model: all simulated searches, those for taught and those for untaught
    entities. `found` maps a model to {"fidelity", "em_simulated", "em_real"}."""
    rates = [rate for rate in RATES if _is_told(rate, found)]
    heads = [HEADS[rate] for rate in rates]
    ends = ("no truth", "EM\nsimulated", "EM\nreal")
    table = Figures(["calls", *heads, *ends], legend=LEGEND)
    for name, entry in found.items():
        summary = entry["fidelity"]
        ems = (_figure(entry["em_simulated"]), _figure(entry["em_real"]))
        table.add_row(name, *_cells(summary, rates), str(summary["unknown"]), *ems)
        for part in ("taught", "untaught"):
            if summary[part]:
                table.add_row(f"  {part}", *_cells(summary[part], rates), "", "", "")
    return table


def _is_told(rate: str, found: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(entry["fidelity"][rate] is not None for entry in found.values())


def _cells(part: Mapping[str, Any], rates: Sequence[str]) -> list[str]:
    return [str(part["n"]), *(_figure(part[rate]) for rate in rates)]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
