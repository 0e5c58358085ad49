"""Functions of the page's modules, called in a real browser."""

from collections.abc import Iterator
from typing import Any

import pytest

from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.extensions.studio.server import create_app
from fieldcraft.tools.serving import serve_in_thread
from view_parts import write_run


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    app = create_app(load_run_views([write_run(tmp_path_factory.mktemp("runs") / "one")]))
    with serve_in_thread(app, on_shutdown=app.state.end) as address:
        page = browser.new_page()
        page.goto(address, wait_until="domcontentloaded")
        yield page
        page.close()


def test_the_curve_of_exact_match_begins_before_training(page: Any) -> None:
    curve = """async ([evaluations, stage]) => {
        const { heldout } = await import('/static/series.js');
        const stages = [{ name: stage, columns: { step: [0, 1], 'eval/em': [0.25, null] } }];
        const { x, y } = heldout({ evaluations }, stages, 'heldout');
        return [x, y];
    }"""
    measured = {"base": {"heldout": {"em": 0.125}}, "rl": {"heldout": {"em": 0.5}}}
    assert page.evaluate(curve, [measured, "rl"]) == [[0, 1, 2], [0.125, 0.25, 0.5]]
    assert page.evaluate(curve, [{"rl": measured["rl"]}, "rl"]) == [[1, 2], [0.25, 0.5]]
    # here it is the evaluation after a stage of that name
    assert page.evaluate(curve, [measured, "base"]) == [[1, 2], [0.25, 0.125]]


def test_a_run_with_a_space_in_its_name_can_be_hidden(page: Any) -> None:
    """The first of two runs is hidden by its box, and shown again."""
    states = """async () => {
        const { render } = await import('/static/vendor/lit-html.js');
        const { curvesView } = await import('/static/curves.js');
        const runs = ['my run', 'run'].map((name) =>
            ({ name, path: name, stages: [{ name: 'rl', steps: 1 }], evaluations: {} }));
        const place = document.body.appendChild(document.createElement('div'));
        const boxes = () => [...place.querySelectorAll('.tick input')];
        const states = [];
        for (const _ of [1, 2, 3]) {
            const hidden = new URLSearchParams(location.search).get('hidden') ?? undefined;
            render(curvesView({ hidden }, { runs, live: { files: {} }, declared: [] }), place);
            states.push(boxes().map(({ checked }) => checked));
            boxes()[0].click();
        }
        place.remove();
        return states;
    }"""
    assert page.evaluate(states) == [[True, True], [False, True], [True, True]]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.00015, "1.5e-4"),
        (-0.0000123456, "-1.23e-5"),
        (0.00100049, "0.001"),
        (0, "0"),
        (1234.5, "1,235"),
    ],
)
def test_numbers_are_short(page: Any, value: float, shown: str) -> None:
    number = "async (value) => (await import('/static/parts.js')).number(value)"
    assert page.evaluate(number, value) == shown
