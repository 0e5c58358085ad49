"""Pages: one file each, without network access, with the modules of the live page inside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fieldcraft.extensions.curation.filters import DataCard
from fieldcraft.extensions.studio.charts import Chart
from fieldcraft.records.files import replace_nonfinite, write_text
from fieldcraft.records.metrics import METRICS, Metric, list_columns

STATIC_FOLDER = Path(__file__).parent / "static"
STYLE_FILES = ("vendor/uplot.css", "page.css", "trajectories.css")
ENTRY_MODULE = "report.js"
REPLACED_MODULES = {"api.js": "inlined.js"}  # a report answers its requests itself
CHART_DIGITS = 8  # significant digits of the values in a page
_IMPORT_REGEX = re.compile(r'^import \{([^}]*)\} from "\./([^"]+)";$', re.MULTILINE)
_EXPORT_REGEX = re.compile(
    r"^export (?=(?:async )?(?:function|const|let|class) (\w+))", re.MULTILINE
)
_EXPORT_LIST_REGEX = re.compile(r"export\{([^}]*)\};?\s*$")


def write_page(
    path: Path,
    template: str,
    *,
    charts: Sequence[Chart] = (),
    run: Mapping[str, Any] | None = None,
    **values: Any,
) -> None:
    """Write a page: a template with its values, its charts in the order of their figures, and the
    data of the modules, `window.RUN`. Without charts and data, the page has no script."""
    script = None if run is None and not charts else make_script()
    data = {"charts": [_round_numbers(asdict(chart)) for chart in charts], **(run or {})}
    environment = make_environment()
    page = environment.get_template(template).render(
        script=script and Markup(script),
        script_hash=script and base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(_read_styles(environment)),
        run=replace_nonfinite(data),
        **values,
    )
    write_text(path, [page])


def write_card_page(card: DataCard, path: Path) -> None:
    """Write the page of a data card."""
    columns = list(dict.fromkeys(name for row in card.figures.values() for name in row))
    write_page(path, "card.html.j2", kind="data card", title=card.title, card=card, columns=columns)


def _read_styles(environment: Environment) -> str:
    assert environment.loader is not None
    styles = [(STATIC_FOLDER / name).read_text("utf-8") for name in STYLE_FILES]
    return "\n".join([*styles, environment.loader.get_source(environment, "report.css")[0]])


def _round_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _round_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_round_numbers(inner) for inner in value]
    return float(f"{value:.{CHART_DIGITS}g}") if isinstance(value, float) else value


# -- script --------------------------------------------------------------------------------------


def make_script() -> str:
    """Return one script with the modules of a report, which a page without a server cannot load.
    Each module becomes a function that returns its exports."""
    modules: dict[str, str] = {}
    _add_module(ENTRY_MODULE, modules)
    return "\n".join(
        [
            (STATIC_FOLDER / "vendor/uplot.js").read_text("utf-8"),
            "// With uPlot, TanStack Virtual (MIT) and lit-html (BSD-3-Clause).",
            'window.RUN = JSON.parse(document.getElementById("run").textContent);',
            "const modules = {};",
            *modules.values(),
        ]
    )


def _add_module(name: str, modules: dict[str, str]) -> None:
    """Add a module after those that it imports."""
    text = (STATIC_FOLDER / REPLACED_MODULES.get(name, name)).read_text("utf-8")
    for _, imported in _IMPORT_REGEX.findall(text):
        if imported not in modules:
            _add_module(imported, modules)
    exports = {exported: exported for exported in _EXPORT_REGEX.findall(text)}
    if listed := _EXPORT_LIST_REGEX.search(text):
        pairs = (pair.split(" as ") for pair in listed[1].split(","))
        exports |= {pair[-1].strip(): pair[0].strip() for pair in pairs}
    text = _IMPORT_REGEX.sub(r'const {\1} = modules["\2"];', text)
    text = _EXPORT_LIST_REGEX.sub("", _EXPORT_REGEX.sub("", text))
    returned = ", ".join(f"{exported}: {local}" for exported, local in exports.items())
    modules[name] = f'modules["{name}"] = (() => {{\n{text}\nreturn {{ {returned} }};\n}})();'


# -- templates -----------------------------------------------------------------------------------


def make_environment() -> Environment:
    """Return the template environment of pages, with their filters."""
    environment = Environment(
        loader=PackageLoader("fieldcraft.extensions.studio"),
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
