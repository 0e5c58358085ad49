"""`report.json`, the interface of a run, and `report.html`, the page that shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fieldcraft.config.recipe import in_order_of_run
from fieldcraft.config.sampling import LIMITS
from fieldcraft.evals import charts
from fieldcraft.evals.achievement import achievement
from fieldcraft.evals.broken import broken_sentences
from fieldcraft.evals.browsing import Source, pack
from fieldcraft.evals.curves import course, course_keys, learning_curves
from fieldcraft.evals.downloads import downloads
from fieldcraft.evals.offered import with_tools_of_their_own
from fieldcraft.evals.samples import sampled_rows
from fieldcraft.evals.tables import calling_rate, has_prices, names_of_tools
from fieldcraft.evals.terms import TERMS, empty_terms
from fieldcraft.records.files import write_text
from fieldcraft.records.rollouts import Kept
from fieldcraft.sampling import WHOLE
from fieldcraft.types import Trajectory

SCHEMA = 1
EVALUATION = "evaluation"  # the stage that stands for all evaluations together
_OWN_KEYS = ("schema", "recipe", "seed", "device", "seconds", "stages", "evals", "pairwise")
_BEHAVIOURS = {
    "more_accurate": "MA: right, was wrong",
    "more_efficient": "ME: same verdict, fewer calls",
    "same_behaviour": "same verdict, same calls",
    "less_efficient": "LE: same verdict, more calls",
    "less_accurate": "LA: wrong, was right",
}
# "stopped": why the run has ended before its last stage; "runs": the reports of several
_SHOWN = (*_OWN_KEYS, "stopped", "runs")
_STYLES = ("report.css", "trajectories.css")
_SCRIPTS = ("dom.js", "charts.js", "tokens.js", "trajectory.js", "trajectories.js")
NO_SOURCE = Source()
NO_LIMITS = asdict(WHOLE)


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage that has run: its name, its wall time in seconds, its evaluation not included, and
    its last metrics. The stage EVALUATION has the time of all evaluations."""

    name: str
    seconds: float
    metrics: dict[str, Any] = field(default_factory=dict)


def build_report(
    *,
    recipe: str,
    seed: int,
    device: str,
    stages: Sequence[StageRecord],
    evals: Mapping[str, dict[str, Any]],
    comparisons: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of `report.json`, schema 1.

    `evals` maps a stage or workflow to what `metrics.summarise` returned for it, and "seconds";
    `comparisons` are of `pairwise`; `extra` adds keys (resolved config, versions) and may not
    rename one. Raises ValueError when it tries.
    """
    if taken := sorted(set(extra) & set(_OWN_KEYS)):
        raise ValueError(f"extra may not replace {', '.join(taken)}")
    return {
        "schema": SCHEMA,
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
    """Write `report.json` atomically. Raises ValueError for a number that JSON cannot hold."""
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, [text, "\n"])


def write_html(
    report: Mapping[str, Any],
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    samples: Mapping[str, Sequence[Trajectory]],
    path: Path,
    origin: Source = NO_SOURCE,
    training: Mapping[str, Sequence[Kept]] = MappingProxyType({}),
) -> None:
    """Write `report.html`: one file without network access, below 2 MB.

    `curves` holds the metric rows of each stage ({"step", "loss", "reward_mean", "em", ...}, any
    of them absent); `samples` the trajectories to browse, by stage or workflow. When they are more
    than fit, questions that end wrong and right are kept in equal measure. `training` has the
    rollouts of training that each stage kept.
    """
    names = [stage["name"] for stage in report["stages"] if stage["name"] != EVALUATION]
    order = list(dict.fromkeys([*in_order_of_run(names, report["evals"]), *curves, *samples]))
    slots = {name: slot for slot, name in enumerate(order)}
    line = _line_of_models(report, names)
    environment = page_environment()
    rows_of_samples = sampled_rows(report["evals"])
    page = environment.get_template("report.html.j2").render(
        report=report,
        rows=_rows(report, slots),
        stages=len(names),
        evaluation=next((s for s in report["stages"] if s["name"] == EVALUATION), None),
        final=_final(report),
        broken=broken_sentences(report["evals"]),
        achieved=None if "runs" in report else achievement(report),
        behaviours=_BEHAVIOURS,
        terms=TERMS,
        empty=empty_terms(report["evals"].values()),
        slots={name: slot % charts.PALETTE_SIZE for name, slot in slots.items()},
        course=course(curves, report["evals"], line, _starts(report), slots),
        course_keys=course_keys(curves, report["evals"], line),
        names_of_tools=names_of_tools(report["evals"]),
        calling_rate=calling_rate,
        offered=with_tools_of_their_own(report["evals"]),
        how_sampled=_how_sampled(report["evals"]),
        sampled_rows=rows_of_samples,
        most_rates=max((row.rates for row in rows_of_samples), key=len, default={}),
        priced=has_prices(report["evals"].values()),
        outcome_charts=_outcome_charts(report, slots),
        curve_charts=learning_curves(curves, slots),
        packed=pack(samples, origin, training),
        origin=origin,
        downloads=downloads(report),
        appendix={key: value for key, value in report.items() if key not in _SHOWN},
        **inlined(environment, _STYLES, _SCRIPTS),
    )
    write_text(path, [page])


def _how_sampled(evals: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the end of a sentence: how the answers of models were sampled."""
    found = {_decoding(entry["sampling"]) for entry in evals.values() if entry.get("sampling")}
    ways = ", or ".join(sorted(found)) or "answered greedily"
    several = any(row.measure != "pass@1" for row in sampled_rows(evals))
    return f"several samples of each, {ways}" if several else ways


def _decoding(sampling: Mapping[str, Any]) -> str:
    if not sampling["temperature"]:
        return "answered greedily"
    limits = [f", {key} {sampling[key]:g}" for key in LIMITS if sampling[key] != NO_LIMITS[key]]
    return f"sampled at temperature {sampling['temperature']:g}{''.join(limits)}"


def _line_of_models(report: Mapping[str, Any], stages: Sequence[str]) -> list[str]:
    """Return the stages, and before them the first model where it was evaluated."""
    first = ["base"] if "base" in report["evals"] and "base" not in stages else []
    return [*first, *stages]


def _starts(report: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the stage that each stage names as its start."""
    stages = report.get("config", {}).get("stages", {})
    return {name: settings.get("start") for name, settings in stages.items()}


def _final(report: Mapping[str, Any]) -> str | None:
    """Return the last stage that was evaluated; without one, the last evaluation."""
    evaluated = [s["name"] for s in report["stages"] if s["name"] in report["evals"]]
    return next(reversed(evaluated or list(report["evals"])), None)


def _rows(report: Mapping[str, Any], slots: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return one row for each stage or workflow, in the order of the run; `entry` is None if not
    evaluated."""
    seconds = {stage["name"]: stage["seconds"] for stage in report["stages"]}
    return [
        {"name": name, "seconds": seconds.get(name), "entry": report["evals"].get(name)}
        for name in slots
        if name in seconds or name in report["evals"]
    ]


def _outcome_charts(report: Mapping[str, Any], slots: Mapping[str, int]) -> list[charts.Chart]:
    evals = {name: e for name, e in report["evals"].items() if e["em"] is not None}
    final = _final(report)
    if not evals or final is None:
        return []
    stages = [stage["name"] for stage in report["stages"] if stage["name"] in evals]
    shown = [
        charts.accuracy_against_calls(evals, stages, slots),
        charts.calls_by_stage(evals, slots),
    ]
    if report["evals"][final]["by_hops"]:
        shown.append(charts.calls_by_hops(final, report["evals"][final], slots[final]))
    return shown


def page_environment() -> Environment:
    """Return the environment of the templates of pages, with their filters."""
    environment = Environment(
        loader=PackageLoader("fieldcraft.evals"),
        autoescape=True,  # questions, observations and answers are untrusted text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {
        "percent": _percent,
        "number": _number,
        "duration": _duration,
        "signed": _signed,
        "probability": _probability,
        "slug": _slug,
        "readable": _readable,
    }
    environment.filters.update(filters)
    return environment


def inlined(
    environment: Environment, styles: Sequence[str], scripts: Sequence[str]
) -> dict[str, str]:
    """Return style sheets and scripts as a page holds them, and the hash by which its policy allows
    just these scripts."""

    def joined(names: Sequence[str]) -> str:
        assert environment.loader is not None
        return "\n".join(environment.loader.get_source(environment, name)[0] for name in names)

    script = joined(scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": Markup(joined(styles)), "script": Markup(script), "script_hash": digest}


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _signed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:+,.{digits}f}"


def _probability(value: float | None) -> str:
    return "–" if value is None else "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _slug(name: str) -> str:
    """Return a term as an address in the page."""
    return "term-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _readable(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
