"""Lines of charts as SVG, by coordinates computed by hand."""

import re

import pytest

from fieldcraft.extensions.studio.charts import Chart, Series, Span
from fieldcraft.extensions.studio.svg import draw_svg


def chart(*series: Series, **keys: object) -> Chart:
    return Chart("A <b> chart", "", "step", "value", series, **keys)  # type: ignore[arg-type]


def test_points_are_placed_between_the_ends_of_the_axes() -> None:
    page = draw_svg(chart(Series("a", 0, [(0, 0), (1, 5), (2, 10)]), top=10.0))
    # x from 46 to 294, y from 114 up to 20
    assert 'points="46.0,114.0 170.0,67.0 294.0,20.0"' in page
    assert re.findall(r'<text x="42"[^>]*>([^<]*)', page) == ["10", "0"]
    assert "A &lt;b&gt; chart" in page


def test_a_logarithmic_axis() -> None:
    page = draw_svg(chart(Series("a", 0, [(0, 1), (1, 10), (2, 100)]), log=True))
    assert 'points="46.0,114.0 170.0,67.0 294.0,20.0"' in page
    assert re.findall(r'<text x="42"[^>]*>([^<]*)', page) == ["100", "1"]


def test_a_smooth_line_has_its_mean() -> None:
    points = [(float(x), float(x % 2)) for x in range(24)]
    thin, thick = re.findall(r'points="([^"]*)"', draw_svg(chart(Series("a", 0, points, "smooth"))))
    assert thin.split()[:2] == ["46.0,114.0", "56.8,20.0"]
    assert thick.split()[1] == "56.8,67.0"  # a mean of two


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0]])
def test_a_line_without_a_range_is_in_the_middle(values: list[float]) -> None:
    page = draw_svg(chart(Series("a", 0, [(float(x), v) for x, v in enumerate(values)])))
    assert "67.0" in page


def test_nothing_to_draw_and_names_of_stages() -> None:
    assert draw_svg(chart(Series("a", 0, [(0, 1)], "", "dot"))) == ""
    spans = [Span("<sft>", 0, 1, True, 0), Span("rl", 1, 2, True, 1)]
    assert "&lt;sft&gt; → rl" in draw_svg(chart(Series("a", None, [(0, 1), (1, 2)]), spans=spans))
