"""Animated picture of the live page: a replay of a finished run.

    python scripts/live_picture.py runs/autocoa-mini docs/live.gif --question 4

A copy of the run grows row by row, and a browser shows its page. The last two frames show a
held-out question, answered by the first and the last stage. The script needs Chromium and Pillow.
docs/live.gif is seed 0 of the demo.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from fieldcraft.config.renamed_keys import builtin_added_keys, translate_stored
from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.extensions.studio.server import create_app
from fieldcraft.tools.serving import serve_in_thread

WIDTH, HEIGHT = 1100, 700  # pixels of the page
SHRINK = 0.75
FRAMES = 6  # per stage
FRAME_MS, LAST_MS, QUESTION_MS = 350, 2500, 4500
SETTLE_MS = 1500  # until the page has read and drawn new rows
COLOURS = 48
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


class Replay:
    """A growing copy of a finished run."""

    def __init__(self, run: Path) -> None:
        stored = json.loads((run / "recipe.json").read_text("utf-8"))
        recipe = translate_stored(stored, builtin_added_keys)
        self.run, self.copy = run, Path("runs") / recipe["name"]
        self.stages = [name for name in recipe["stages"] if (run / name / "metrics.jsonl").exists()]
        (self.copy / "evaluations").mkdir(parents=True)
        shutil.copy(run / "recipe.json", self.copy)

    def grow(self) -> Iterator[None]:
        """Grow by one frame and yield, until the run is complete."""
        for name in self.stages:
            (self.copy / name).mkdir()
            metrics = Path(name) / "metrics.jsonl"
            rows = (self.run / metrics).read_text("utf-8").splitlines(keepends=True)
            for frame in range(1, FRAMES + 1):
                if frame == FRAMES:
                    self._finish(name)
                grown = rows[: len(rows) * frame // FRAMES]
                (self.copy / metrics).write_text("".join(grown), "utf-8")
                yield

    def _finish(self, name: str) -> None:
        shutil.copy(self.run / name / "stage.json", self.copy / name)
        (self.copy / name / "model").symlink_to(self.run / name / "model")  # for its tokenizer
        for path in (self.run / "evaluations").glob(f"{name}.json*"):
            shutil.copy(path, self.copy / "evaluations")


def picture(page: Page) -> Image.Image:
    page.wait_for_timeout(SETTLE_MS)
    drawn = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return drawn.resize((round(WIDTH * SHRINK), round(HEIGHT * SHRINK)), Image.Resampling.LANCZOS)


def film(run: Path, question: int) -> Iterator[tuple[Image.Image, int]]:
    """Yield the pictures and their durations in milliseconds."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        replay = Replay(run)
        app = create_app(load_run_views([replay.copy]))
        with (
            serve_in_thread(app, on_shutdown=app.state.end) as url,
            sync_playwright() as driver,
            driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS) as browser,
        ):
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(f"{url}/?view=curves", wait_until="domcontentloaded")
            pictures = [picture(page) for _ in replay.grow()]
            yield from ((drawn, FRAME_MS) for drawn in pictures[:-1])
            yield pictures[-1], LAST_MS
            evaluated = [
                name for name in replay.stages if (run / "evaluations" / f"{name}.jsonl").exists()
            ]
            for stage in (evaluated[0], evaluated[-1]):
                name = f"{replay.copy.name}/{stage}/evaluation//{question}"
                page.goto(f"{url}/?view=trajectories&open={name}", wait_until="domcontentloaded")
                yield picture(page), QUESTION_MS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--question", type=int, default=0, help="its index in the evaluation")
    given = parser.parse_args()
    pictures, times = zip(*film(given.run.resolve(), given.question), strict=True)
    frames = [drawn.quantize(COLOURS, dither=Image.Dither.NONE) for drawn in pictures]
    frames[0].save(
        given.out, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True
    )
    print(f"{given.out}: {len(frames)} pictures, {given.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
