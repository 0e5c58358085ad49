"""Faithfulness of simulated observations: against the truth of a world, or the real tool.

A call whose real observation cannot be told (a name that the world does not know, as a miswritten
query is; a tool that fails) has no verdict and is counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fieldcraft.rewards.answers import f1, normalise
from fieldcraft.terminal.figure_table import FigureTable
from fieldcraft.tools.search.passages import parse_results
from fieldcraft.types import (
    CallOutcome,
    CallRecord,
    Tool,
    ToolError,
    ToolUnavailableError,
    Trajectory,
    UserError,
)
from fieldcraft.worlds.base import SimulationVerdict, SimulationVerdicts, get_simulated_calls

RATE_HEADERS = {
    "supports_answer": "supports",
    "contradicts": "contradicts",
    "well_formed": "form",
    "f1": "F1",
}
RATE_KEYS = tuple(RATE_HEADERS)
FIDELITY_LEGEND = {
    "calls": "simulated ones that were judged",
    "supports": "share that has what the real observation tells of the answer",
    "contradicts": "share that tells otherwise",
    "form": "share in the form of the real tool",
    "F1": "overlap with the words of the real observation",
    "no truth": "calls of which nobody knows a real observation",
    "EM\nsimulated": "share of right answers with simulated observations",
    "EM\nreal": "the same with real ones",
}


# -- against the real tool -----------------------------------------------------------------------


async def judge_against_tool(tool: Tool, trajectory: Trajectory) -> SimulationVerdicts:
    """Return a verdict on each simulated call by what the tool returns for it. `supports_answer`
    looks at the gold answers that stand in the real text; where none does, it cannot be told."""
    golds = {normalise(gold) for gold in trajectory.task.answers} - {""}
    verdicts: SimulationVerdicts = []
    for call in get_simulated_calls(trajectory):
        real = await _call_real_tool(tool, call)
        if real is None:
            verdicts.append(None)
            continue
        present = {gold for gold in golds if _contains_answer(gold, real)}
        verdicts.append(
            SimulationVerdict(
                call.outcome is CallOutcome.OK and parse_results(call.observation) is not None,
                any(_contains_answer(gold, call.observation) for gold in present)
                if present
                else None,
                f1=f1(call.observation, [real]),
            )
        )
    return verdicts


async def _call_real_tool(tool: Tool, call: CallRecord) -> str | None:
    """Return the text that the real tool gives; None where it gives no results either. Raises
    UserError where it does not answer at all, for then nothing can be told of any simulation."""
    if call.tool != tool.name:
        return None
    try:
        return await tool(**call.arguments)
    except ToolUnavailableError as error:
        raise UserError(
            f"the real tool '{tool.name}', which simulated results are compared with, does not"
            f" answer ({str(error).rstrip('.')}): start it and run the same command again."
        ) from error
    except ToolError:
        return None


def _contains_answer(gold: str, text: str) -> bool:
    """Return whether the words of a normalised answer follow one another in a text."""
    return f" {gold} " in f" {normalise(text)} "


# -- summaries -----------------------------------------------------------------------------------


def summarise_fidelity(verdicts: Sequence[SimulationVerdict | None]) -> dict[str, Any]:
    """Return a summary of the verdicts: `n` judged observations and their rates, in all and for
    taught and untaught entities (None where there are none). `unknown` is how many have no verdict.
    A rate is None where nothing can be told; `supports_answer_n` is how many observations
    `supports_answer` could be told of."""
    judged = [verdict for verdict in verdicts if verdict is not None]
    parts = {
        "taught": [v for v in judged if v.taught is True],
        "untaught": [v for v in judged if v.taught is False],
    }
    return {
        **_compute_rates(judged),
        "unknown": len(verdicts) - len(judged),
        **{name: _compute_rates(part) if part else None for name, part in parts.items()},
    }


def _compute_rates(judged: Sequence[SimulationVerdict]) -> dict[str, Any]:
    decidable = sum(verdict.supports_answer is not None for verdict in judged)
    rates = {name: _mean(getattr(v, name) for v in judged) for name in RATE_KEYS}
    return {"n": len(judged), "supports_answer_n": decidable, **rates}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def compute_fidelity_metrics(
    judge: Callable[[Trajectory], SimulationVerdicts | None], trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """Return the metrics of a simulated step: `fidelity/supports_answer`,
    `fidelity/taught/supports_answer`, ... Rates of nothing are left out; there are none at all
    where `judge` cannot tell what is true."""
    verdicts: SimulationVerdicts = []
    for trajectory in trajectories:
        judged = judge(trajectory)
        if judged is None:
            return {}
        verdicts += judged
    summary = summarise_fidelity(verdicts)
    row = {"fidelity/n": summary["n"], "fidelity/unknown": summary["unknown"]}
    for prefix, part in (("", summary), *((f"{p}/", summary[p]) for p in ("taught", "untaught"))):
        rates = {name: part[name] for name in RATE_KEYS} if part else {}
        row |= {f"fidelity/{prefix}{k}": rate for k, rate in rates.items() if rate is not None}
    return row


def build_fidelity_table(results: Mapping[str, Mapping[str, Any]]) -> FigureTable:
    """Return rows for each model: all simulated searches, those for taught and those for untaught
    entities. `results` maps a model to {"fidelity", "em_simulated", "em_real"}."""
    rates = [rate for rate in RATE_KEYS if _has_rate(rate, results)]
    headers = [RATE_HEADERS[rate] for rate in rates]
    ends = ("no truth", "EM\nsimulated", "EM\nreal")
    table = FigureTable(["calls", *headers, *ends], legend=FIDELITY_LEGEND)
    for name, entry in results.items():
        summary = entry["fidelity"]
        ems = (_format_rate(entry["em_simulated"]), _format_rate(entry["em_real"]))
        table.add_row(name, *_make_cells(summary, rates), str(summary["unknown"]), *ems)
        for part in ("taught", "untaught"):
            if summary[part]:
                table.add_row(f"  {part}", *_make_cells(summary[part], rates), "", "", "")
    return table


def _has_rate(rate: str, results: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(entry["fidelity"][rate] is not None for entry in results.values())


def _make_cells(part: Mapping[str, Any], rates: Sequence[str]) -> list[str]:
    return [str(part["n"]), *(_format_rate(part[rate]) for rate in rates)]


def _format_rate(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
