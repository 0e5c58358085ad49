"""The report in a real browser, from a file and without a server: its charts and its trajectories,
by fragment and by hand, in light and dark, on a desktop and on a phone."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.evaluation.pages import PageContext
from fieldcraft.evaluation.seed_table import aggregate_seeds
from fieldcraft.extensions.studio.seeds_page import write_seeds_page
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.types import Status
from report_parts import ATTACK, SAMPLES, run, trajectory
from seeds_parts import STAGES, recipe, report

CURVES = {
    "rl1": [
        {"step": step, "reward_mean": 0.5, "em": 0.5 + step / 100, "calls_mean": 2.0}
        for step in range(20)
    ]
}
RL1 = "#kind=evaluation&part=rl1"
Open = Callable[..., Any]


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Open a page from its file. Afterwards, the console must be empty: a blocked request, or an
    inline script that the policy of the page stopped, would be logged there."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def visit(path: Path, fragment: str = "", *, width: int = 1300, dark: bool = False) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(240_000)
        page.on("console", lambda entry: complaints.append(entry.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: _is_own(request.url, path, complaints))
        page.goto(f"file://{path}{fragment}")
        page.wait_for_selector(".u-legend")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def _is_own(address: str, path: Path, complaints: list[str]) -> None:
    if not address.startswith((f"file://{path}", "data:", "blob:")):
        complaints.append(f"asked for {address}")


def questions(page: Any, count: int) -> list[str]:
    """Return the last words of the questions in the list, when it has `count` trajectories."""
    total(page, count)
    return [text.split(" ")[-1] for text in page.locator(".row .c-question").all_inner_texts()]


def total(page: Any, count: int) -> None:
    page.get_by_text(re.compile(f"^{count} trajectories$")).wait_for()


def fragment(page: Any) -> str:
    found: str = page.evaluate("location.hash")
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page of two stages; the last one has every kind of trajectory for the filters."""
    after = [
        trajectory("a", correct=True, question="Where is Kelm?", split="heldout"),
        trajectory("b", correct=False, question="Who met Sur Tor?", split="train", known=True),
        trajectory("c", correct=True, question="Who is Dro?", split="train", calls_optimal=0),
    ]
    after[1].calls, after[1].status = [], Status.TRUNCATED
    after[2].calls *= 2
    after[1].segments[1].ids = [2, 3, 3, 3]
    before = [trajectory(t.task.id, correct=False) for t in after]
    for trained, earlier in zip(after, before, strict=True):
        earlier.task = trained.task
    source = PageContext(
        dict(enumerate(("", "Q:", "I ", "look", ATTACK, "</think>\n"))).__getitem__
    )
    path = tmp_path_factory.mktemp("page") / "r.html"
    drawn = [trajectory("t", correct=correct, question="Who trains?") for correct in (True, False)]
    training = {
        "rl1": [
            TrainingRollout(step, [0.0, size, size, 0.0, size], rollout)
            for step in (0, 19)
            for size, rollout in zip((0.5, -0.5), drawn, strict=True)
        ]
    }
    samples = {"sft1": before, "rl1": after}
    run(path, samples, curves=CURVES, source=source, training=training)
    return path


# -- trajectories ----------------------------------------------------------------------------------


@pytest.mark.long
def test_the_fragment_is_the_state_and_there_is_nothing_to_complain_about(
    visit: Open, tmp_path: Path
) -> None:
    path = tmp_path / "r.html"
    samples = {**SAMPLES, "rl2": [trajectory("x", correct=True, observation=ATTACK)]}
    run(path, samples, curves=CURVES)
    page = visit(path, f"{RL1}&right=0")
    assert len(questions(page, 2)) == 2
    total(visit(path, f"{RL1}&hops=3"), 1)
    page = visit(path)  # without a fragment: the final stage
    total(page, 1)
    assert fragment(page) == "#kind=evaluation&part=rl2"
    page.locator(".row").click()
    page.locator(".transcript").wait_for()
    assert ATTACK in page.locator(".k-observation").inner_text()
    assert page.locator("img, main script, main svg").count() == 0  # the attack had no effect
    page.goto(f"file://{path}#term-f1")  # a place in the page, not a state
    assert page.locator("div:target dfn").inner_text() == "F1"


def test_every_filter_filters_and_the_search_finds(visit: Open, path: Path) -> None:
    page = visit(path, RL1)
    assert questions(page, 3) == ["Kelm?", "Tor?", "Dro?"]
    for label, value, count in (
        *(("Answer", "0", 1), ("Split", "train", 2), ("Calls", "2", 1)),
        *(("Status", "truncated", 1), ("Known", "1", 1), ("Known", "0", 2)),
    ):
        page.get_by_label(label, exact=True).select_option(value)
        total(page, count)
        page.get_by_label(label, exact=True).select_option("")
        total(page, 3)
    page.get_by_role("searchbox").fill("tor SUR")
    assert questions(page, 1) == ["Tor?"]
    assert fragment(page) == f"{RL1}&q=tor+SUR"
    page.get_by_role("searchbox").fill("kelm nowhere")
    total(page, 0)
    page.get_by_role("button", name="Reset").click()
    total(page, 10)


def test_sorting(visit: Open, path: Path) -> None:
    orders = {
        "": ["Kelm?", "Tor?", "Dro?"],
        "-calls": ["Dro?", "Kelm?", "Tor?"],  # 2, 1, 0
        "-excess": ["Dro?", "Kelm?", "Tor?"],  # 2, 0, -1
        "-tokens": ["Tor?", "Kelm?", "Dro?"],  # 5, 3, 3
        "right": ["Tor?", "Kelm?", "Dro?"],
        "-right": ["Kelm?", "Dro?", "Tor?"],
    }
    for order, expected in orders.items():
        page = visit(path, f"{RL1}&sort={order}")
        assert questions(page, 3) == expected, order
    page.get_by_role("button", name="Sort by Excess").click()
    page.locator("[aria-sort=ascending]", has_text="Excess").wait_for()


def test_one_question_across_stages_and_its_tokens(visit: Open, path: Path) -> None:
    page = visit(path, RL1)
    total(page, 3)
    page.locator(".row").first.click()
    page.get_by_role("link", name="All rollouts of this question").click()
    page.locator(".column").nth(1).wait_for()
    assert page.locator("h1.asked").inner_text() == "Where is Kelm?"
    assert page.locator(".column h3 a").all_inner_texts() == ["sft1", "rl1"]
    page.get_by_role("link", name="Next question").click()
    page.locator("h1.asked", has_text="Who met Sur Tor?").wait_for()
    page.get_by_role("link", name="Previous question").click()
    page.locator("h1.asked", has_text="Where is Kelm?").wait_for()
    page.locator(".column h3 a").nth(1).click()
    page.locator(".strip").wait_for()
    assert page.locator(".actions code").inner_text() == "fieldcraft show . --stage rl1 --index 0"
    tokens = page.locator(".segment").all_inner_texts()
    assert [text.strip() for text in tokens] == ["Q:", "I look", ATTACK, "</think>↵"]
    page.get_by_role("button", name="mask").click()
    page.get_by_text("3 of 5 tokens are trained").wait_for()
    shadows = """[...document.querySelectorAll('.token')]
        .map((token) => getComputedStyle(token).boxShadow.includes('-2px'))"""
    assert page.evaluate(shadows) == [False, True, True, False, True]  # also without colours
    page.locator(".token").nth(2).click()
    page.locator(".of-token div", has_text="log-probability").wait_for()
    assert "log-probability\n-1.2" in page.locator(".of-token").inner_text()
    assert page.locator("img").count() == 0
    page.keyboard.press("Escape")
    page.locator(".column").first.wait_for()


def test_training_rollouts_are_found_by_step_and_have_their_advantages(
    visit: Open, path: Path
) -> None:
    page = visit(path, RL1)
    total(page, 3)
    page.get_by_label("From", exact=True).select_option("training")
    total(page, 4)
    page.get_by_label("Step", exact=True).select_option("19")
    total(page, 2)
    assert fragment(page) == "#kind=training&part=rl1&step=19"
    assert page.locator(".row .c-advantage").all_inner_texts() == ["0.5", "-0.5"]
    page.locator(".row").first.click()
    page.get_by_role("button", name="advantage").click()
    page.locator(".valued").nth(2).wait_for()
    page.locator(".token").nth(2).click()
    page.locator(".of-token div", has_text="advantage").wait_for()
    assert "advantage\n0.5" in page.locator(".of-token").inner_text()
    page.get_by_role("link", name="All rollouts of this question").click()
    page.locator(".column").nth(3).wait_for()
    assert page.locator(".column h3 .mark").all_inner_texts() == ["✓", "✗"] * 2


# -- charts ----------------------------------------------------------------------------------------


def values(figure: Any) -> dict[str, str]:
    """Return the values at the pointer that a chart shows."""
    names = figure.locator(".u-series:not(.faint) .u-label").all_inner_texts()
    found = figure.locator(".u-series:not(.faint) .u-value").all_inner_texts()
    return {name: value for name, value in zip(names, found, strict=True) if value != "–"}


def test_a_chart_shows_its_values_by_pointer_and_by_key(visit: Open, path: Path) -> None:
    page = visit(path)
    exact, calls = page.locator(".course figure").all()
    exact.focus()
    page.keyboard.press("Home")
    assert values(exact) == {"step": "sft1", "sft1, evaluation": "0"}
    page.keyboard.press("ArrowRight")
    assert values(exact) == {"step": "rl1, step 0", "rl1, training rollouts": "0.5"}
    page.keyboard.press("End")
    assert values(exact) == {"step": "rl1, step 20", "rl1, evaluation": "0.6667"}
    calls.scroll_into_view_if_needed()
    box = calls.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + box["height"] / 2)
    calls.locator(".u-value", has_text="rl1, step 20").wait_for()
    assert values(calls)["rl1, evaluation"] == "1"
    with page.expect_download() as saved:
        exact.get_by_role("button", name="CSV").click()
    lines = saved.value.path().read_text().splitlines()
    assert saved.value.suggested_filename == "course-of-the-run-exact-match.csv"
    assert lines[0] == "series,at,where,measure,value"
    assert '"rl1, training rollouts",step,19,exact match,0.69' in lines


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page over two seeds, of rows with attacks as titles."""
    one = {"type": "rl", "start_from": "sft", "steps": 3, "optim": {"lr": 0.1}}
    settings = recipe(
        stages=STAGES | {"one": one, "two": one},
        table_rows={"ReAct": "workflow", "SFT": "sft", "A": "one", ATTACK: "two"},
    )
    reports = {seed: report(0.25 + seed / 4) for seed in range(2)}
    for found in reports.values():
        found["evals"] |= dict.fromkeys(("one", "two"), found["evals"]["rl2"])
    steps = [
        {"step": i, "em": 0.5, "calls_mean": 1.0 + i / 9, "calls_optimal_mean": 1.0}
        for i in range(9)
    ]
    path = tmp_path_factory.mktemp("sweep") / "report.html"
    curves = {"one": [steps, steps], "two": [steps, steps]}
    write_seeds_page(aggregate_seeds(settings, reports), {}, curves, {}, path)
    return path


def test_the_charts_of_several_seeds_show_their_values_too(visit: Open, sweep: Path) -> None:
    page = visit(sweep)  # the policy of the page allows its script, and the titles have no effect
    figures = page.locator("figure.chart").all()
    assert page.locator("button.csv").count() == len(figures) == 5
    ends = []
    for figure in figures:
        figure.focus()
        page.keyboard.press("End")
        ends.append(values(figure))
    exact, calls, against, shares, rates = ends
    # a rollout makes 1.5 calls and is right with rates of 0.25 and 0.5 in the two seeds
    assert exact == {"step": "8", "A": "0.5", ATTACK: "0.5"}
    assert calls == {"step": "8", "A": "1.889", ATTACK: "1.889", "optimum": "1"}  # 1 + 8 / 9
    assert against == {"calls per question": "1.5", ATTACK: "0.375"}
    assert shares["calls"] == "1"
    assert shares["ReAct"] == "0.6667"  # 2 + 4 of 9
    assert rates[ATTACK] == "0.4286"  # 6 of 14


@pytest.mark.parametrize(
    ("width", "dark", "paper"),
    [
        (1300, True, "rgb(18, 20, 24)"),
        (390, False, "rgb(246, 246, 243)"),
    ],
)
def test_light_and_dark_desktop_and_phone(
    visit: Open, path: Path, width: int, dark: bool, paper: str
) -> None:
    page = visit(path, RL1, width=width, dark=dark)
    total(page, 3)
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    beyond = """[...document.querySelectorAll('main :is(button, select, input, canvas)')]
        .filter((e) => e.offsetParent && !e.closest('.head'))
        .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML)"""
    assert page.evaluate(beyond) == []
