"""Page of a run, `report.html`, and of several runs, `compared.html`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fieldcraft.config.recipe import sort_by_run_order
from fieldcraft.config.sampling import TRUNCATION_KEYS
from fieldcraft.evaluation.achievement import describe_achievement, describe_broken_rates
from fieldcraft.evaluation.pages import PageContext
from fieldcraft.evaluation.report import EVALUATION_STAGE, REPORT_KEYS
from fieldcraft.evaluation.samples import make_pass_rate_rows
from fieldcraft.evaluation.tables import (
    compute_calling_rate,
    find_restricted_results,
    find_unseen_name_results,
    has_prices,
)
from fieldcraft.extensions.studio import charts
from fieldcraft.extensions.studio.downloads import make_report_tables
from fieldcraft.extensions.studio.packing import pack_trajectories
from fieldcraft.extensions.studio.pages import write_page
from fieldcraft.extensions.studio.terms import find_empty_terms, list_terms
from fieldcraft.extensions.studio.training_charts import draw_course, draw_learning_curves
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.sampling import NO_TRUNCATION
from fieldcraft.types import Trajectory

_BEHAVIOUR_LABELS = {
    "more_accurate": "MA: correct, was wrong",
    "more_efficient": "ME: same verdict, fewer calls",
    "same_behaviour": "same verdict, same calls",
    "less_efficient": "LE: same verdict, more calls",
    "less_accurate": "LA: wrong, was correct",
}
# "stopped": reason why the run ended before its last stage; "runs": the reports of several runs
RENDERED_KEYS = (*REPORT_KEYS, "stopped", "runs")
EMPTY_PAGE_CONTEXT = PageContext()
NO_TRUNCATION_KEYS = asdict(NO_TRUNCATION)


def write_report_page(
    report: Mapping[str, Any],
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    samples: Mapping[str, Sequence[Trajectory]],
    path: Path,
    page_context: PageContext = EMPTY_PAGE_CONTEXT,
    training: Mapping[str, Sequence[TrainingRollout]] = MappingProxyType({}),
) -> None:
    """Write `report.html`: one file without network access, below 2 MB.

    `curves` contains the metric rows of each stage ({"step", "loss", "reward_mean", "em", ...}, all
    optional); `samples` the trajectories to browse, by stage or workflow. If not all fit, equal
    numbers of correctly and wrongly answered questions are selected. `training` contains the
    recorded training rollouts of each stage.
    """
    names = [stage["name"] for stage in report["stages"] if stage["name"] != EVALUATION_STAGE]
    order = list(dict.fromkeys([*sort_by_run_order(names, report["evals"]), *curves, *samples]))
    slots = {name: slot for slot, name in enumerate(order)}
    models = _list_models(report, names)
    pass_rate_rows = make_pass_rate_rows(report["evals"])
    course = draw_course(curves, report["evals"], models, _find_start_stages(report), slots)
    outcome_charts = _draw_outcome_charts(report, slots)
    curve_charts = draw_learning_curves(curves, slots)
    final = _find_headline_model(report)
    packed = pack_trajectories(report["recipe"], samples, page_context, training)
    write_page(
        path,
        "report.html.j2",
        charts=[*course, *outcome_charts, *curve_charts],
        run={
            "run": report["recipe"],
            "parts": order,
            "first": final if final in packed.total else None,
            "trajectories": packed.text,
        },
        kind="report",
        title=report["recipe"],
        report=report,
        rows=_make_rows(report, slots),
        stages=len(names),
        evaluation=next((s for s in report["stages"] if s["name"] == EVALUATION_STAGE), None),
        final=final,
        broken=describe_broken_rates(report["evals"]),
        achieved=None if "runs" in report else describe_achievement(report),
        behaviours=_BEHAVIOUR_LABELS,
        terms=list_terms(),
        empty=find_empty_terms(report["evals"].values()),
        slots={name: slot % charts.PALETTE_SIZE for name, slot in slots.items()},
        course=course,
        names_of_tools=find_unseen_name_results(report["evals"]),
        calling_rate=compute_calling_rate,
        offered=find_restricted_results(report["evals"]),
        how_sampled=_describe_sampling(report["evals"]),
        sampled_rows=pass_rate_rows,
        most_rates=max((row.rates for row in pass_rate_rows), key=len, default={}),
        priced=has_prices(report["evals"].values()),
        outcome_charts=outcome_charts,
        curve_charts=curve_charts,
        packed=packed,
        origin=page_context,
        downloads=make_report_tables(report),
        appendix={key: value for key, value in report.items() if key not in RENDERED_KEYS},
    )


def _describe_sampling(evals: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the end of a sentence about the sampling of the models' answers."""
    descriptions = {
        _describe_decoding(entry["sampling"]) for entry in evals.values() if entry.get("sampling")
    }
    text = ", or ".join(sorted(descriptions)) or "answered greedily"
    several = any(row.measure != "pass@1" for row in make_pass_rate_rows(evals))
    return f"several samples of each, {text}" if several else text


def _describe_decoding(sampling: Mapping[str, Any]) -> str:
    if not sampling["temperature"]:
        return "answered greedily"
    limits = [
        f", {key} {sampling[key]:g}"
        for key in TRUNCATION_KEYS
        if sampling[key] != NO_TRUNCATION_KEYS[key]
    ]
    return f"sampled at temperature {sampling['temperature']:g}{''.join(limits)}"


def _list_models(report: Mapping[str, Any], stages: Sequence[str]) -> list[str]:
    """Return the stages, preceded by the first model if it was evaluated."""
    first = ["base"] if "base" in report["evals"] and "base" not in stages else []
    return [*first, *stages]


def _find_start_stages(report: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the stage that each stage names as its start."""
    stages = report.get("config", {}).get("stages", {})
    return {name: settings.get("start_from") for name, settings in stages.items()}


def _find_headline_model(report: Mapping[str, Any]) -> str | None:
    """Return the last evaluated stage, or else the last evaluation."""
    evaluated = [s["name"] for s in report["stages"] if s["name"] in report["evals"]]
    return next(reversed(evaluated or list(report["evals"])), None)


def _make_rows(report: Mapping[str, Any], slots: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return one row for each stage or workflow, in the order of the run; `entry` is None if not
    evaluated."""
    seconds = {stage["name"]: stage["seconds"] for stage in report["stages"]}
    return [
        {"name": name, "seconds": seconds.get(name), "entry": report["evals"].get(name)}
        for name in slots
        if name in seconds or name in report["evals"]
    ]


def _draw_outcome_charts(report: Mapping[str, Any], slots: Mapping[str, int]) -> list[charts.Chart]:
    evals = {name: e for name, e in report["evals"].items() if e["em"] is not None}
    final = _find_headline_model(report)
    if not evals or final is None:
        return []
    stages = [stage["name"] for stage in report["stages"] if stage["name"] in evals]
    drawn = [
        charts.draw_accuracy_against_calls(evals, stages, slots),
        charts.draw_calls_by_stage(evals, slots),
    ]
    if report["evals"][final]["by_hops"]:
        drawn.append(charts.draw_calls_by_hops(final, report["evals"][final], slots[final]))
    return drawn
