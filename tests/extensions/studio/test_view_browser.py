"""The page in a real browser: every view by hand and by address, wide and narrow, light and dark.

The tests also cover the keyboard, a run in training, and texts that contain markup.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.extensions.studio.server import create_app
from fieldcraft.records.timeline import append_step_times
from fieldcraft.tools.serving import serve_in_thread
from view_parts import HOSTILE, append, step_times, trajectory, write_metrics, write_run

PATIENCE = 240_000  # milliseconds; drawing is slow on a busy machine
MANY = 3000
VIEWS = {
    "runs": "?view=runs",
    "curves": "?view=curves",
    "list": "?view=trajectories",
    "trajectory": "?view=trajectories&open=one/rl1/training/4/1&tokens=entropies",
    "question": "?view=trajectories&question=q4",
    "timeline": "?view=timeline",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    first = write_run(folder / "one")
    append(first / "evaluations" / "rl1.jsonl", trajectory("odd", question=HOSTILE, found=HOSTILE))
    return first, write_run(folder / "two", seed=3)


@pytest.fixture(scope="module")
def url(runs: tuple[Path, Path]) -> Iterator[str]:
    app = create_app(load_run_views(runs))
    with serve_in_thread(app, on_shutdown=app.state.end) as address:
        yield address


Open = Callable[..., Any]


@pytest.fixture
def visit(browser: Any, url: str) -> Iterator[Open]:
    """Open an address.

    Afterwards, the console must be empty, and all requests must have gone to the page's own server.
    """
    complaints: list[str] = []
    contexts: list[Any] = []

    def visit(address: str, *, width: int = 1280, dark: bool = False, site: str = url) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda entry: complaints.append(entry.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: _is_own(request.url, site, complaints))
        page.goto(f"{site}/{address}", wait_until="domcontentloaded")
        page.wait_for_selector("main h1")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def _is_own(request_url: str, own: str, complaints: list[str]) -> None:
    if not request_url.startswith((f"{own}/", "data:")):
        complaints.append(f"asked for {request_url}")


def rows(page: Any) -> list[str]:
    return [text.split("\n")[0] for text in page.locator(".row .c-question").all_inner_texts()]


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true; the page's security policy forbids the library's way."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"{expression} did not come true"
        page.wait_for_timeout(50)


# -- every view ------------------------------------------------------------------------------------

READY = {
    "runs": "document.querySelectorAll('.figures tbody tr').length === 2",
    "curves": "document.querySelectorAll('.chart canvas').length > 4",
    "list": "document.querySelectorAll('.row .c-question').length > 10",
    "trajectory": "document.querySelectorAll('.token.valued').length > 3",
    "question": "document.querySelectorAll('.column').length === 8",
    "timeline": "document.querySelectorAll('.figures tbody tr').length === 3",
}
PAPER = {False: "rgb(246, 246, 243)", True: "rgb(18, 20, 24)"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("dark", "width"),
    [
        (False, 390),
        (True, 1280),
        pytest.param(True, 390, marks=pytest.mark.slow),
        pytest.param(False, 1280, marks=pytest.mark.slow),
    ],
)
def test_every_view_fits_wide_and_narrow_light_and_dark(
    visit: Open, width: int, dark: bool
) -> None:
    for name, address in VIEWS.items():
        page = visit(address, width=width, dark=dark)
        until(page, READY[name])
        root = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert root == [width, width], name  # no element makes the page itself wider
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == PAPER[dark]
        beyond = """[...document.querySelectorAll('main :is(button, select, input)')]
            .filter((e) => e.offsetParent && !e.closest('.head'))
            .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
            .map((e) => e.outerHTML)"""
        assert page.evaluate(beyond) == [], name


def test_runs_stand_side_by_side_with_what_their_recipes_differ_in(visit: Open) -> None:
    page = visit(VIEWS["runs"])
    until(page, READY["runs"])
    assert page.locator(".run h2").all_inner_texts() == ["one", "two"]
    assert page.locator(".differences tbody").inner_text().split() == ["seed", "0", "3"]
    page.get_by_role("link", name="rl1").first.click()
    until(page, "location.search === '?view=curves&stage=rl1'")


def test_curves_have_values_under_the_pointer_and_are_smoothed(visit: Open) -> None:
    page = visit("?view=curves&stage=rl1&smooth=0")
    until(page, READY["curves"])
    chart = page.locator(".chart", has_text="reward_mean")
    chart.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert chart.locator(".u-value").all_inner_texts()[:2] == ["4", "0.4"]
    overall = page.locator(".chart").first
    assert "Exact match on heldout questions" in overall.inner_text()
    titles = [element.inner_text() for element in page.locator(".charts .u-title").all()]
    declared = ["reward_mean", "em", "eval/em", "loss", "seconds"]
    assert titles == [*declared, "a_key_of_ones_own"]
    # 0, 0.1, 0.2, 0.3, 0.4, each with half of the previous average
    page.evaluate("history.pushState(null, '', '?view=curves&stage=rl1&smooth=0.5')")
    page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    until(page, "document.querySelector('.faint')")
    # redrawn with more lines, the chart still shows the step under the pointer
    smooth = chart.locator(".u-series:not(.faint) .u-value").nth(1)
    assert smooth.inner_text() == "0.3161 (0.4)"  # (0.4 + 0.3/2 + 0.2/4 + 0.1/8) / (31/16)
    page.get_by_label("two").uncheck()
    until(page, "location.search.includes('hidden=two')")
    charts = "[...document.querySelectorAll('.charts .chart')]"  # redrawn in the next frame
    until(page, f"!{charts}.some((chart) => chart.textContent.includes('two'))")


# -- the list --------------------------------------------------------------------------------------


@pytest.mark.long
def test_filters_search_and_order_are_in_the_address_and_it_restores_them(visit: Open) -> None:
    page = visit(VIEWS["list"])
    until(page, READY["list"])
    until(page, "document.querySelector('output').textContent === '29 trajectories'")
    page.get_by_label("Stage", exact=True).select_option("sft1")
    page.get_by_label("Answer", exact=True).select_option("0")
    until(page, "document.querySelector('output').textContent === '4 trajectories'")
    page.get_by_role("searchbox").fill("dro")
    until(page, "document.querySelector('output').textContent === '2 trajectories'")
    page.get_by_role("button", name="Sort by Calls").click()
    until(page, "location.search.includes('sort=calls')")
    address = page.evaluate("location.search")
    assert address == "?view=trajectories&part=sft1&right=0&q=dro&sort=calls"
    again = visit(address)
    until(again, "document.querySelector('output').textContent === '2 trajectories'")
    assert again.get_by_label("Answer", exact=True).input_value() == "0"
    assert again.get_by_role("searchbox").input_value() == "dro"
    until(again, "document.querySelectorAll('.row .c-question').length === 2")
    assert rows(again) == ["Who met Dro?"] * 2
    assert again.locator("[aria-sort=ascending]").inner_text().startswith("Calls")
    page.go_back()
    until(page, "!location.search.includes('sort')")


def test_downloads_have_what_the_list_shows(visit: Open) -> None:
    page = visit("?view=trajectories&part=rl1&kind=training&run=two")
    until(page, "document.querySelector('output').textContent === '8 trajectories'")
    with page.expect_download() as lines:
        page.get_by_role("link", name="JSON lines").click()
    records = [json.loads(line) for line in lines.value.path().read_text().splitlines()]
    assert [record["step"] for record in records] == [0] * 4 + [4] * 4
    with page.expect_download() as table:
        page.get_by_role("link", name="CSV").click()
    assert len(table.value.path().read_text().splitlines()) == 9
    assert table.value.suggested_filename == "trajectories.csv"


@pytest.mark.long
def test_a_long_list_is_scrolled_without_holding_it(visit: Open, tmp_path: Path) -> None:
    run = tmp_path / "long"
    run.mkdir()
    for number in range(MANY):
        append(run / "trajectories.jsonl", trajectory(f"t{number}", question=f"Who is {number}?"))
    app = create_app(load_run_views([run]))
    with serve_in_thread(app, on_shutdown=app.state.end) as address:
        page = visit("?view=trajectories", site=address)
        until(page, f"document.querySelector('output').textContent.startsWith('{MANY:,}')")
        page.evaluate("document.querySelector('.rows').scrollTop = 1e9")
        last = f"document.querySelector('#row-{MANY - 1} .c-question')?.textContent"
        until(page, f"{last} === 'Who is {MANY - 1}?'")
        assert len(rows(page)) < 80
        page.locator(".rows").focus()
        page.keyboard.press("Home")
        until(page, "document.querySelector('#row-0 .c-question')?.textContent === 'Who is 0?'")
        page.close()  # before its server, which it asks for changes


# -- trajectories ----------------------------------------------------------------------------------


def test_the_strip_of_tokens_shows_what_is_known_of_each(visit: Open) -> None:
    page = visit(VIEWS["trajectory"])
    until(page, READY["trajectory"])
    layers = page.locator(".layers button").all_inner_texts()
    assert layers == [
        *("author", "mask", "log-probability", "entropy", "advantage", "ratio", "version"),
    ]
    page.get_by_role("button", name="mask").click()
    until(page, "document.querySelectorAll('.token.trained').length === 4")
    assert "tokens=mask" in page.evaluate("location.search")
    page.locator(".token").nth(2).hover()
    until(page, "document.querySelector('.of-token').textContent.includes('entropy')")
    message = """[...document.querySelectorAll('.of-token div')]
        .map((e) => [...e.children].map((c) => c.textContent))"""
    pairs = dict(page.evaluate(message))
    assert (pairs["id"], pairs["trained"], pairs["ratio"]) == ("4", "yes", "1.25")
    page.get_by_role("button", name="advantage").click()
    until(page, "document.querySelectorAll('.layer-advantages .valued').length === 4")


def test_an_address_without_a_number_is_answered_with_a_sentence(visit: Open) -> None:
    for place in ("one/rl1/evaluation", "one/rl1/training/4/undefined"):
        page = visit(f"?view=trajectories&open={place}")
        note = page.locator(".note").inner_text()
        assert note == (
            "This address names no trajectory, because its number is missing:"
            " go back, and open one from the list."
        )


@pytest.mark.long
def test_all_rollouts_of_a_question_and_the_question_across_stages(visit: Open) -> None:
    page = visit(VIEWS["trajectory"])
    page.get_by_role("link", name="All rollouts of this question").click()
    until(page, READY["question"])
    heads = page.locator("section h2").all_inner_texts()
    assert heads == ["Training: one, rl1, step 4", "Training: two, rl1, step 4"]
    badges = page.locator(".column").nth(1).locator(".badge").all_inner_texts()
    assert badges[:3] == ["reward 1", "advantage 0.5", "version 4"]
    stages = visit("?view=trajectories&question=t1")
    until(stages, "document.querySelectorAll('.column').length === 4")
    assert stages.locator(".column h3 a").all_inner_texts() == ["sft1", "rl1"] * 2


@pytest.mark.long
def test_texts_are_never_markup(visit: Open) -> None:
    titles = set()
    for address in (
        "?view=trajectories&task=odd",
        "?view=trajectories&open=one/rl1/evaluation//3",
        "?view=trajectories&question=odd",
    ):
        page = visit(address)
        until(page, "document.querySelector('main').textContent.includes('onerror')")
        assert page.locator("main img, main script, main svg").count() == 0
        titles.add(page.title())
    assert titles == {"fieldcraft studio"}


# -- the timeline and growing files ----------------------------------------------------------------


def test_the_timeline_says_who_waited(visit: Open) -> None:
    page = visit("?view=timeline&of=one/rl1&steps=3")
    until(page, READY["timeline"])
    summary = page.locator("main p").first.inner_text()
    assert "trained 40.0 % of the time and waited" in summary
    assert "The sampler was idle 50.0 %" in summary
    page.locator(".lanes canvas").focus()
    page.keyboard.press("ArrowRight")
    # the middle of a step: the first slot after the rollouts
    page.locator(".lanes canvas").hover(position={"x": 80, "y": 60})
    until(
        page, "document.querySelector('.lanes output').textContent.includes('4 rollouts generate')"
    )
    assert "trainer: waits for rollouts" in page.locator(".lanes output").inner_text()


@pytest.mark.long
def test_a_page_follows_a_run_while_it_trains(visit: Open, tmp_path: Path) -> None:
    run = write_run(tmp_path / "live")
    write_metrics(run, "rl1", 3)
    app = create_app(load_run_views([run]))
    with serve_in_thread(app, on_shutdown=app.state.end) as address:
        page = visit("?view=timeline&steps=all", site=address)
        until(page, "document.querySelectorAll('.figures tbody tr').length === 5")
        append_step_times(run / "rl1" / "timeline.jsonl", step_times(5))
        until(page, "document.querySelectorAll('.figures tbody tr').length === 6")
        page.get_by_role("link", name="Trajectories").click()
        until(page, "document.querySelector('output')?.textContent === '14 trajectories'")
        append(run / "evaluations" / "rl1.jsonl", trajectory("late"))
        until(page, "document.querySelector('output').textContent === '15 trajectories'")
        with (run / "rl1" / "metrics.jsonl").open("a") as file:
            file.write('{"step": 3, "reward_mean": 0.9, "seconds": 2.0}\n{"step": 4, "rew')
        page.get_by_role("link", name="Runs").click()
        until(page, "document.querySelector('main').textContent.includes('4 of 5 steps')")
        assert page.locator(".note").count() == 0  # an incomplete line is not an error
        page.get_by_role("link", name="Curves").click()
        until(page, READY["curves"])
        with (run / "rl1" / "metrics.jsonl").open("a") as file:
            file.write('ard_mean": 0.5, "seconds": 2.0}\n')
        last = "document.querySelector('.charts .u-value').textContent"
        page.locator(".chart", has_text="reward_mean").focus()
        for _ in range(500):  # to the end, until one more step appears
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(50)
            if page.evaluate(last) == "4":
                break
        assert page.evaluate(last) == "4"
        page.close()


# -- the keyboard alone ----------------------------------------------------------------------------


@pytest.mark.long
def test_everything_is_reached_with_the_keyboard_alone(visit: Open) -> None:
    page = visit(VIEWS["runs"])
    until(page, READY["runs"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == "Trajectories"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    until(page, READY["list"])
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('rows')"):
            break
    for _ in range(4):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    until(page, "location.search.includes('open=one%2Frl1%2Ftraining%2F0%2F0')")
    page.wait_for_selector(".strip")
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('.of-token').textContent.includes('prompt')")
    page.keyboard.press("Escape")
    until(page, "!location.search.includes('open')")
    until(page, READY["list"])
    focused = page.evaluate("document.activeElement.classList.contains('rows')")
    assert focused  # going back restores the position


@pytest.mark.long
def test_every_control_has_a_name(visit: Open) -> None:
    nameless = """[...document.querySelectorAll('input, select, button, a, [tabindex="0"]')]
        .filter((e) => e.offsetParent && !(e.labels?.length || e.ariaLabel || e.textContent.trim()))
        .map((e) => e.outerHTML)"""
    for name, address in VIEWS.items():
        page = visit(address)
        until(page, READY[name])
        assert page.evaluate(nameless) == [], name
