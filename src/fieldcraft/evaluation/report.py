"""`report.json`, the machine-readable report of a run, and its page `report.html`.

The page offers its tables as CSV, for a spreadsheet or a data frame.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fieldcraft.config.recipe import sort_by_run_order
from fieldcraft.config.sampling import TRUNCATION_KEYS
from fieldcraft.evaluation import charts
from fieldcraft.evaluation.achievement import describe_achievement, describe_broken_rates
from fieldcraft.evaluation.browsing import PageContext, pack_trajectories
from fieldcraft.evaluation.curves import (
    draw_learning_curves,
    draw_run_overview,
    make_overview_legend,
)
from fieldcraft.evaluation.samples import make_pass_rate_rows
from fieldcraft.evaluation.tables import (
    compute_calling_rate,
    find_restricted_results,
    find_unseen_name_results,
    has_prices,
)
from fieldcraft.evaluation.terms import find_empty_terms, list_terms
from fieldcraft.records.files import write_text
from fieldcraft.records.metrics import METRICS, Metric, list_columns
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.sampling import NO_TRUNCATION
from fieldcraft.types import Trajectory

SCHEMA_VERSION = 1
EVALUATION_STAGE = "evaluation"  # represents all evaluations together
_REPORT_KEYS = ("schema", "recipe", "seed", "device", "seconds", "stages", "evals", "pairwise")
_BEHAVIOUR_LABELS = {
    "more_accurate": "MA: correct, was wrong",
    "more_efficient": "ME: same verdict, fewer calls",
    "same_behaviour": "same verdict, same calls",
    "less_efficient": "LE: same verdict, more calls",
    "less_accurate": "LA: wrong, was correct",
}
# "stopped": reason why the run ended before its last stage; "runs": the reports of several runs
_RENDERED_KEYS = (*_REPORT_KEYS, "stopped", "runs")
_STYLE_FILES = ("report.css", "trajectories.css")
_SCRIPT_FILES = ("dom.js", "charts.js", "tokens.js", "trajectory.js", "trajectories.js")
EMPTY_PAGE_CONTEXT = PageContext()
NO_TRUNCATION_KEYS = asdict(NO_TRUNCATION)
Entry = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StageSummary:
    """A completed stage: its name, its wall time in seconds without its evaluation, and its last
    metrics. The stage EVALUATION has the time of all evaluations."""

    name: str
    seconds: float
    metrics: dict[str, Any] = field(default_factory=dict)


def build_report(
    *,
    recipe: str,
    seed: int,
    device: str,
    stages: Sequence[StageSummary],
    evals: Mapping[str, dict[str, Any]],
    comparisons: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of `report.json`, schema 1.

    `evals` maps a stage or workflow to its result of `summary.summarise_evaluation` and "seconds";
    `comparisons` become `pairwise`; `extra` adds keys (resolved config, versions). Raises
    ValueError if `extra` replaces a reserved key.
    """
    if reserved := sorted(set(extra) & set(_REPORT_KEYS)):
        raise ValueError(f"extra may not replace {', '.join(reserved)}")
    return {
        "schema": SCHEMA_VERSION,
        "recipe": recipe,
        "seed": seed,
        "device": device,
        "seconds": sum(stage.seconds for stage in stages),
        "stages": [
            {"name": s.name, "seconds": s.seconds, "metrics": dict(s.metrics)} for s in stages
        ],
        "evals": dict(evals),
        "pairwise": [dict(comparison) for comparison in comparisons],
        **extra,
    }


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """Write `report.json` atomically. Raises ValueError for a number that JSON cannot represent."""
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, [text, "\n"])


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
    environment = make_page_environment()
    pass_rate_rows = make_pass_rate_rows(report["evals"])
    page = environment.get_template("report.html.j2").render(
        report=report,
        rows=_make_rows(report, slots),
        stages=len(names),
        evaluation=next((s for s in report["stages"] if s["name"] == EVALUATION_STAGE), None),
        final=_find_headline_model(report),
        broken=describe_broken_rates(report["evals"]),
        achieved=None if "runs" in report else describe_achievement(report),
        behaviours=_BEHAVIOUR_LABELS,
        terms=list_terms(),
        empty=find_empty_terms(report["evals"].values()),
        slots={name: slot % charts.PALETTE_SIZE for name, slot in slots.items()},
        course=draw_run_overview(
            curves, report["evals"], models, _find_start_stages(report), slots
        ),
        course_keys=make_overview_legend(curves, report["evals"], models),
        names_of_tools=find_unseen_name_results(report["evals"]),
        calling_rate=compute_calling_rate,
        offered=find_restricted_results(report["evals"]),
        how_sampled=_describe_sampling(report["evals"]),
        sampled_rows=pass_rate_rows,
        most_rates=max((row.rates for row in pass_rate_rows), key=len, default={}),
        priced=has_prices(report["evals"].values()),
        outcome_charts=_draw_outcome_charts(report, slots),
        curve_charts=draw_learning_curves(curves, slots),
        packed=pack_trajectories(samples, page_context, training),
        origin=page_context,
        downloads=make_downloads(report),
        appendix={key: value for key, value in report.items() if key not in _RENDERED_KEYS},
        **inline_assets(environment, _STYLE_FILES, _SCRIPT_FILES),
    )
    write_text(path, [page])


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


def make_page_environment() -> Environment:
    """Return the template environment of pages, with their filters."""
    environment = Environment(
        loader=PackageLoader("fieldcraft.evaluation"),
        autoescape=True,  # questions, observations and answers are untrusted text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {
        "percent": _format_percent,
        "number": _format_number,
        "duration": _format_duration,
        "signed": _format_signed,
        "probability": _format_p_value,
        "slug": _make_slug,
        "readable": _format_value,
    }
    environment.filters.update(filters)
    environment.globals.update(
        list_columns=list_columns, format_metric=_format_metric, metrics=METRICS
    )
    return environment


def inline_assets(
    environment: Environment, styles: Sequence[str], scripts: Sequence[str]
) -> dict[str, str]:
    """Return style sheets and scripts for embedding in a page, and the hash for its content
    security policy."""

    def join_files(names: Sequence[str]) -> str:
        assert environment.loader is not None
        return "\n".join(environment.loader.get_source(environment, name)[0] for name in names)

    script = join_files(scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": Markup(join_files(styles)), "script": Markup(script), "script_hash": digest}


def _format_metric(metric: Metric, summary: Mapping[str, Any]) -> str:
    """Return the value of a metric in the summary of an evaluation."""
    value = metric.read(summary)
    return _format_percent(value) if metric.percent else _format_number(value, metric.digits)


def _format_percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _format_number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _format_signed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:+,.{digits}f}"


def _format_p_value(value: float | None) -> str:
    return "–" if value is None else "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _make_slug(name: str) -> str:
    """Convert a term to an anchor in the page."""
    return "term-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _format_duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


# -- tables as CSV -----------------------------------------------------------------------------


def make_downloads(report: Mapping[str, Any]) -> dict[str, str]:
    """Return file names, each with a data URL that contains the file."""
    tables = {
        "evaluations.csv": list(make_evaluation_rows(report["evals"])),
        "comparisons.csv": list(report["pairwise"]),
    }
    return {name: _make_data_url(render_csv(rows)) for name, rows in tables.items() if rows}


def make_evaluation_rows(evals: Mapping[str, Entry]) -> Iterator[Row]:
    """Yield one row for each evaluation and, if its questions have several splits or data sources,
    one for each of these."""
    for name, entry in evals.items():
        yield {"name": name, "split": entry.get("split", "all"), **_flatten_entry(entry)}
        for split, part in (entry.get("splits", {}) | entry.get("sources", {})).items():
            yield {"name": name, "split": split, **_flatten_entry(part)}


def _flatten_entry(entry: Entry) -> Row:
    """Return every number of an entry; numbers inside a group, such as `known`, are named
    group.number."""
    row: Row = {}
    for key, value in entry.items():
        if key in ("splits", "sources", "split", "by_hops", "by_level", "by_calls"):
            continue
        if isinstance(value, Mapping):
            row |= {f"{key}.{inner}": found for inner, found in value.items()}
        elif isinstance(value, Sequence) and not isinstance(value, str):
            row |= {f"{key}.{index}": found for index, found in enumerate(value)}
        else:
            row[key] = value
    return row


def render_csv(rows: Sequence[Row]) -> str:
    """Render a table with a header; a missing number is an empty cell."""
    headers = dict.fromkeys(key for row in rows for key in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(headers))
    writer.writeheader()
    writer.writerows({key: _escape_formula(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _escape_formula(value: Any) -> Any:
    """Return a value for a table; a name that a spreadsheet would interpret as a formula is
    escaped."""
    is_formula = isinstance(value, str) and value[:1] in tuple("=+-@\t\r")
    return f"'{value}" if is_formula else value


def _make_data_url(text: str) -> str:
    return "data:text/csv;base64," + base64.b64encode(text.encode(errors="replace")).decode()
