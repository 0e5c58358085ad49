"""Lines of a chart as SVG, for outputs in which no script runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log10

from fieldcraft.extensions.studio.charts import PALETTE_SIZE, Chart, Points, Series, smooth
from fieldcraft.terminal.html import escape_text

WIDTH, HEIGHT = 300, 130
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 46, 6, 20, 16  # pixels
PLOT_WIDTH, AXIS_Y = WIDTH - MARGIN_LEFT - MARGIN_RIGHT, HEIGHT - MARGIN_BOTTOM
SMOOTHING = 12  # points per line, divided by this, are the window of a mean
# Colours of static/page.css that are readable on light and dark pages.
COLOURS = ("#4a86dd", "#d98a2b", "#3fa86b", "#c968a8", "#2aa0b3", "#d9605a", "#9272d6", "#868d99")
DASHES = {"dashed": "5 4", "dotted": "2 3"}


def draw_svg(chart: Chart) -> str:
    """Return the lines of a chart as an SVG element, with the range of both axes; marks and
    whiskers are left out."""
    lines = [series for series in chart.series if series.points and series.line]
    points = [point for series in lines for point in series.points]
    if not points:
        return ""
    low, high = _find_range(chart, [y for _, y in points])
    first, last = chart.x_range or (min(x for x, _ in points), max(x for x, _ in points))

    def place(points: Points) -> str:
        """Return points in pixels."""
        return " ".join(
            f"{MARGIN_LEFT + (x - first) / (last - first or 1) * PLOT_WIDTH:.1f},"
            f"{AXIS_Y - (_scale(chart, y) - low) / (high - low) * (AXIS_Y - MARGIN_TOP):.1f}"
            for x, y in points
        )

    paths = "".join(_draw_line(series, place) for series in lines)
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' font-family="system-ui,sans-serif" font-size="10" fill="currentColor">'
        f"<title>{escape_text(chart.title)}</title>{_draw_frame(chart, low, high)}{paths}</svg>"
    )


def _scale(chart: Chart, value: float) -> float:
    return log10(value) if chart.log else value


def _find_range(chart: Chart, values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the y axis, as exponents if it is logarithmic."""
    if chart.top is not None and not chart.log:
        return 0.0, chart.top
    scaled = [_scale(chart, value) for value in values]
    low, high = min(scaled), max(scaled)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _draw_line(series: Series, place: Callable[[Points], str]) -> str:
    colour = "currentColor" if series.slot is None else COLOURS[series.slot % PALETTE_SIZE]
    style = f'fill="none" stroke="{colour}"'
    if dash := DASHES.get(series.line):
        style += f' stroke-dasharray="{dash}"'
    if len(series.points) == 1:
        x, _, y = place(series.points).partition(",")
        return f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>'
    if series.line != "smooth":
        return f'<polyline {style} points="{place(series.points)}"/>'
    window = max(1, len(series.points) // SMOOTHING)
    means = smooth([y for _, y in series.points], window)
    averaged = [(x, mean) for (x, _), mean in zip(series.points, means, strict=True)]
    thin = f'<polyline {style} opacity=".35" points="{place(series.points)}"/>'
    return f'{thin}<polyline {style} stroke-width="2" points="{place(averaged)}"/>'


def _draw_frame(chart: Chart, low: float, high: float) -> str:
    """Return the title, the axes, and the names of the stages below them."""
    ends = [10**low, 10**high] if chart.log else [low, high]
    bottom, top = (f"{100 * end:.0f} %" if chart.percent else f"{end:.3g}" for end in ends)
    spans = " → ".join(escape_text(span.name) for span in chart.spans)
    frame = f"M{MARGIN_LEFT} {MARGIN_TOP}V{AXIS_Y}h{PLOT_WIDTH}"
    return (
        f'<text x="{MARGIN_LEFT}" y="12" font-weight="bold">{escape_text(chart.title)}</text>'
        f'<path d="{frame}" fill="none" stroke="currentColor" opacity=".4"/>'
        f'<g text-anchor="end"><text x="{MARGIN_LEFT - 4}" y="{MARGIN_TOP + 8}">{top}</text>'
        f'<text x="{MARGIN_LEFT - 4}" y="{AXIS_Y}">{bottom}</text></g>'
        f'<text x="{MARGIN_LEFT}" y="{HEIGHT - 3}" opacity=".7">{spans}</text>'
    )
