"""Faithfulness of simulated observations, measured against a world or the real tool.

A call whose real observation is unknown has no verdict and is counted separately: a name that the
world does not contain, such as a misspelt query, or a tool failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fieldcraft.data.passages import parse_results
from fieldcraft.data.world import (
    SimulationVerdict,
    SimulationVerdicts,
    get_simulated_calls,
)
from fieldcraft.rewards.answers import f1, normalise
from fieldcraft.terminal.figure_table import FigureTable
from fieldcraft.types import (
    CallOutcome,
    CallRecord,
    Tool,
    ToolError,
    ToolUnavailableError,
    Trajectory,
    UserError,
)

RATE_HEADERS = {
    "supports_answer": "supports",
    "contradicts": "contradicts",
    "well_formed": "form",
    "f1": "F1",
}
RATE_KEYS = tuple(RATE_HEADERS)
FIDELITY_LEGEND = {
    "calls": "judged simulated calls",
    "supports": "share that contains the answer facts of the real observation",
    "contradicts": "share that contradicts it",
    "form": "share in the format of the real tool",
    "F1": "word overlap with the real observation",
    "no truth": "calls whose real observation is unknown",
    "EM\nsimulated": "share of correct answers with simulated observations",
    "EM\nreal": "the same with real ones",
}


# -- against the real tool -----------------------------------------------------------------------


async def judge_against_tool(tool: Tool, trajectory: Trajectory) -> SimulationVerdicts:
    """Return a verdict on each simulated call, compared with the result of the tool.
    `supports_answer` considers the gold answers in the real text; without any it is unknown."""
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
    """Return the text of the real tool; None if it returns no results. Raises UserError if it does
    not respond at all, because no simulation can then be judged."""
    if call.tool != tool.name:
        return None
    try:
        return await tool(**call.arguments)
    except ToolUnavailableError as error:
        raise UserError(
            f"the real tool '{tool.name}', the reference for simulated results, does not"
            f" respond ({str(error).rstrip('.')}): start it and run the same command again."
        ) from error
    except ToolError:
        return None


def _contains_answer(gold: str, text: str) -> bool:
    """Return whether a normalised answer occurs in a text as consecutive words."""
    return f" {gold} " in f" {normalise(text)} "


# -- summaries -----------------------------------------------------------------------------------


def summarise_fidelity(verdicts: Sequence[SimulationVerdict | None]) -> dict[str, Any]:
    """Return a summary of the verdicts: `n` judged observations and their rates, in total and for
    taught and untaught entities (None if there are none). `unknown` is the number without a
    verdict. A rate is None if nothing could be judged; `supports_answer_n` is the number
    of observations for which `supports_answer` could be judged."""
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
    `fidelity/taught/supports_answer`, ... Undefined rates are omitted. Empty if `judge` has no
    ground truth."""
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
    """Return rows for each model: all simulated searches, and those for taught and untaught
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
