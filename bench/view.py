"""Measure opening and scrolling of a folder with many trajectories in `fieldcraft studio`.

    python bench/view.py [--count 100000] [--chromium /usr/bin/chromium]

It needs playwright and Chromium. It makes a folder of trajectories, serves the page, and measures
in the browser: the time from the page request to the first rows, while the server reads the folder
and afterwards, the time until it has read all, the durations of a filter, a search, a sort and a
jump to the end, and the times between frames while the list is scrolled for five seconds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from playwright.sync_api import CDPSession, Page, sync_playwright

from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.extensions.studio.server import create_app
from fieldcraft.records.trajectories import to_json
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Status, Task, Trajectory

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
WORDS = 2000  # different words of the texts
ROWS = "document.querySelectorAll('.row .c-question').length > 5"
COUNTED = "document.querySelector('output').textContent"
SCROLL = """() => new Promise((done) => {
  const rows = document.querySelector(".rows"), times = [];
  let before = performance.now();
  const begin = before;
  const step = (now) => {
    times.push(now - before);
    before = now;
    rows.scrollTop += 240;
    if (now - begin < 5000) requestAnimationFrame(step);
    else done(times.slice(1));
  };
  requestAnimationFrame(step);
})"""


def made(count: int) -> Iterator[Trajectory]:
    """Yield trajectories of about 2.5 kB each: up to three calls, texts of random words."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(WORDS)]

    def segment(author: Author, length: int) -> Segment:
        ids = rng.choices(range(1000), k=length)
        policy = author is Author.POLICY
        logprobs = [round(-rng.expovariate(2), 6) for _ in ids] if policy else []
        text = " ".join(rng.choices(words, k=length))
        return Segment(author, ids, text, logprobs, [(0, length)] if policy else [])

    for number in range(count):
        calls = number % 4
        turns = [
            s for _ in range(calls) for s in (segment(Author.POLICY, 15), segment(Author.TOOL, 40))
        ]
        right = float(rng.random() < 0.5)
        yield Trajectory(
            Task(f"t{number}", " ".join(rng.choices(words, k=8)), ("x",), {"split": "heldout"}),
            [segment(Author.PROMPT, 12), *turns, segment(Author.POLICY, 12)],
            [
                CallRecord("search", {"query": words[0]}, s.text, CallOutcome.OK, 0.1)
                for s in turns[1::2]
            ],
            rng.choice(list(Status)),
            words[number % WORDS],
            True,
            {"em": right},
            right,
        )


def wait(page: Page, expression: str) -> float:
    """Return the seconds until an expression is true."""
    begin = time.perf_counter()
    while not page.evaluate(expression):
        page.wait_for_timeout(10)
    return time.perf_counter() - begin


def opened(page: Page, url: str) -> float:
    begin = time.perf_counter()
    page.goto(f"{url}/?view=trajectories", wait_until="commit")
    wait(page, ROWS)
    return time.perf_counter() - begin


def acted(page: Page, action: Any, expression: str) -> float:
    begin = time.perf_counter()
    action()
    wait(page, expression)
    return round(time.perf_counter() - begin, 2)


def frames(page: Page) -> dict[str, float]:
    """Return statistics of the frames during scrolling. `cpu_ms` is the CPU time of the page's main
    thread per frame: unlike the times between frames, it does not depend on other load."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _computed(session)
    times = sorted(page.evaluate(SCROLL))
    computed = _computed(session) - before
    session.detach()
    return {
        "cpu_ms": round(1000 * computed / len(times), 1),
        "frames": len(times),
        "median_ms": round(statistics.median(times), 1),
        "p95_ms": round(times[int(0.95 * len(times))], 1),
        "longest_ms": round(times[-1], 1),
    }


def _computed(session: CDPSession) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


def main(
    count: Annotated[int, typer.Option(help="Number of trajectories.")] = 100_000,
    chromium: Path = Path("/usr/bin/chromium"),
) -> None:
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        run = Path(folder, "run")
        run.mkdir()
        with (run / "trajectories.jsonl").open("w") as file:
            file.writelines(f"{to_json(one)}\n" for one in made(count))
        size = (run / "trajectories.jsonl").stat().st_size
        print(f"{count} trajectories, {size / 1e6:.0f} MB", flush=True)
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)

        def note(name: str, value: Any) -> None:
            print(f"{name}: {value}", flush=True)

        def visit(url: str) -> tuple[Page, float]:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(600_000)
            return page, round(opened(page, url), 2)

        browser.new_page().goto("about:blank")  # excludes the startup cost of the first page
        app = create_app(load_run_views([run]))
        begin = time.perf_counter()
        with serve_in_thread(app, on_shutdown=app.state.end) as url:
            page, first = visit(url)
            note("first_rows_s", first)
            note("scroll_while_reading", frames(page))
            wait(page, f"{COUNTED}.startsWith('{count:,}')")
            note("read_s", round(time.perf_counter() - begin, 1))
            page.close()
            page, first = visit(url)
            note("first_rows_of_another_page_s", first)
            wait(page, f"{COUNTED}.startsWith('{count:,}')")
            note("scroll", frames(page))
            end = "document.querySelector('.rows').scrollTop = 1e9"
            filled = f"document.querySelector('#row-{count - 1} .c-question') !== null"
            note("jump_to_the_end_s", acted(page, lambda: page.evaluate(end), filled))
            chosen = page.get_by_label("Calls", exact=True)
            part = f"{COUNTED}.startsWith('{len(range(3, count, 4)):,}')"
            note("filter_s", acted(page, lambda: chosen.select_option("3"), part))
            sort = page.get_by_role("button", name="Sort by Tokens")
            sorted_ = "document.querySelector('[aria-sort=ascending]') && " + ROWS
            note("sort_s", acted(page, sort.click, sorted_))
            search = page.get_by_role("searchbox")
            fewer = f"!({part}) && !{COUNTED}.startsWith('…') && {ROWS}"
            note("search_s", acted(page, lambda: search.fill("a"), fewer))
        browser.close()


if __name__ == "__main__":
    typer.run(main)
