"""Faithfulness of simulated observations, measured against a world or the real tool.

A call whose real observation is unknown has no verdict and is counted separately: a name that the
world does not contain, such as a misspelt query, or a tool failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fieldcraft.data.passages import parse_results
from fieldcraft.data.world import (
    SimulationVerdict,
    SimulationVerdicts,
    get_simulated_calls,
)
from fieldcraft.records.tool_metrics import mean_or_none
from fieldcraft.rewards.answers import f1, normalise
from fieldcraft.terminal.figure_table import FigureTable
from fieldcraft.types import (
    KNOWN_ACCURACY_THRESHOLD,
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
# Bands of the chance that a model states the needed facts without a tool: name -> upper limit,
# which only the last band includes. The first band has a chance of 0.
RECALL_BANDS = {
    "never": 0.0,
    "below_half": 0.5,
    "below_known": KNOWN_ACCURACY_THRESHOLD,
    "known": 1.0,
}
RECALL_TITLES = {
    "never": "knows it never",
    "below_half": "less than half the time",
    "below_known": "half the time or more",
    "known": f"{KNOWN_ACCURACY_THRESHOLD:g} of the time or more",
}
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
    of observations for which `supports_answer` could be judged. `recall` has the rates by how well
    the model knows the needed facts, for each of RECALL_BANDS that occurs; it is missing where the
    world does not measure that."""
    judged = [verdict for verdict in verdicts if verdict is not None]
    parts = {
        "taught": [v for v in judged if v.taught is True],
        "untaught": [v for v in judged if v.taught is False],
    }
    return {
        **_compute_rates(judged),
        "unknown": len(verdicts) - len(judged),
        **{name: _compute_rates(part) if part else None for name, part in parts.items()},
        **_summarise_recall(judged),
    }


def _summarise_recall(judged: Sequence[SimulationVerdict]) -> dict[str, Any]:
    bands = {
        name: [v for v in judged if v.recall is not None and find_recall_band(v.recall) == name]
        for name in RECALL_BANDS
    }
    rates = {name: _compute_rates(band) for name, band in bands.items() if band}
    return {"recall": rates} if rates else {}


def find_recall_band(recall: float) -> str:
    """Return the band of RECALL_BANDS of a chance from 0 to 1."""
    if not recall:
        return "never"
    return next((name for name, limit in RECALL_BANDS.items() if recall < limit), "known")


def _compute_rates(judged: Sequence[SimulationVerdict]) -> dict[str, Any]:
    decidable = sum(verdict.supports_answer is not None for verdict in judged)
    rates = {name: mean_or_none(getattr(v, name) for v in judged) for name in RATE_KEYS}
    return {"n": len(judged), "supports_answer_n": decidable, **rates}


def compute_fidelity_metrics(
    judge: Callable[[Trajectory], SimulationVerdicts | None], trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """Return the metrics of a simulated step: `fidelity/supports_answer`,
    `fidelity/taught/supports_answer`, `fidelity/never/supports_answer`, ... Undefined rates are
    omitted. Empty if `judge` has no ground truth."""
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
    for name, part in summary.get("recall", {}).items():
        row |= {f"fidelity/{name}/n": part["n"]}
        if (rate := part["supports_answer"]) is not None:
            row |= {f"fidelity/{name}/supports_answer": rate}
    return row


def build_fidelity_table(results: Mapping[str, Mapping[str, Any]]) -> FigureTable:
    """Return rows for each model: all simulated searches, and those for taught and untaught
    entities, or, where the model's knowledge is measured, by how often it states the needed facts
    without a tool. `results` maps a model to {"fidelity", "em_simulated", "em_real"}."""
    rates = [rate for rate in RATE_KEYS if _has_rate(rate, results)]
    headers = [RATE_HEADERS[rate] for rate in rates]
    ends = ("no truth", "EM\nsimulated", "EM\nreal")
    table = FigureTable(["calls", *headers, *ends], legend=FIDELITY_LEGEND)
    for name, entry in results.items():
        summary = entry["fidelity"]
        ems = (_format_rate(entry["em_simulated"]), _format_rate(entry["em_real"]))
        table.add_row(name, *_make_cells(summary, rates), str(summary["unknown"]), *ems)
        for title, part in _list_parts(summary).items():
            table.add_row(f"  {title}", *_make_cells(part, rates), "", "", "")
    return table


def _list_parts(summary: Mapping[str, Any]) -> dict[str, Any]:
    if bands := summary.get("recall"):
        return {RECALL_TITLES[name]: part for name, part in bands.items()}
    return {name: summary[name] for name in ("taught", "untaught") if summary[name]}


def _has_rate(rate: str, results: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(entry["fidelity"][rate] is not None for entry in results.values())


def _make_cells(part: Mapping[str, Any], rates: Sequence[str]) -> list[str]:
    return [str(part["n"]), *(_format_rate(part[rate]) for rate in rates)]


def _format_rate(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
