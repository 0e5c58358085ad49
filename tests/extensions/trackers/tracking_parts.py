"""Run folder and events without training, for tests of trackers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.records.events import (
    EvaluationCompleted,
    Event,
    EventBus,
    LogMessage,
    StepCompleted,
    write_metrics,
)
from fieldcraft.records.files import write_json
from fieldcraft.runs.context import attach_trackers
from fieldcraft.runs.folder import RunFolder
from fieldcraft.runs.resume import open_run_folder

STAGES = {
    "sft": {"type": "sft", "dataset": "base", "steps": 4, "batch_size": 2, "optim": {"lr": 1e-3}},
    "rl": {"type": "rl", "steps": 4, "optim": {"lr": 1e-3}},
}


def open_folder(out: Path, trackers: Sequence[Any]) -> RunFolder:
    recipe = {
        "name": "tracked",
        "world": {"name": "atlas"},
        "stages": STAGES,
        "trackers": list(trackers),
    }
    with open_run_folder(out, parse_recipe(recipe)) as folder:
        return folder


class Played:
    """Source of a run's events: rows of steps, and evaluations, which are on disk before."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.said = folder, list[str]()
        self.events = EventBus([write_metrics, self._listen])

    def _listen(self, event: Event) -> None:
        if isinstance(event, LogMessage):
            self.said.append(event.text)

    def step(self, stage: str, number: int, **row: Any) -> None:
        file = self.folder.stage(stage).metrics
        file.parent.mkdir(parents=True, exist_ok=True)
        self.events(StepCompleted(stage, {"step": number, **row}, file))

    def evaluate(self, name: str, summary: Mapping[str, Any]) -> None:
        files = self.folder.evaluation(name)
        write_json(files.summary, {"seconds": 1.0, "summary": dict(summary)})
        self.events(EvaluationCompleted(name, dict(summary)))


def rewind(folder: RunFolder, stage: str, steps: int) -> None:
    """Remove the rows after the last checkpoint, as resuming does."""
    file = folder.stage(stage).metrics
    rows = [line for line in file.read_text().splitlines(True) if json.loads(line)["step"] < steps]
    file.write_text("".join(rows))


def play_stopped_run(folder: RunFolder) -> Played:
    """Play a run that is stopped and resumed.

    It has three steps of `sft`, a stop after which the last of them is trained again, a fourth
    step, an evaluation, and a step of `rl`. Losses of a repeated step differ, as they can with a
    remote engine.
    """
    played = Played(folder)
    with attach_trackers(folder, played.events):
        for number in range(3):
            played.step("sft", number, loss=3.0 - number, note="a text", timing={"sample": 0.5})
    with attach_trackers(folder, played.events):
        rewind(folder, "sft", 2)
        played.step("sft", 2, loss=99.0, timing={"sample": 0.5})
        played.step("sft", 3, loss=0.5, timing={"sample": 0.5})
        played.evaluate("sft", {"n": 4, "em": 0.25, "judge": None, "by_hops": {"1": {"em": 1.0}}})
        played.step("rl", 0, em=0.75, avg_at={"pass@2": 1})
    return played


# (curve, step, value) of `play_stopped_run`, in every tracker
CURVES = sorted(
    [
        *(("sft/loss", step, loss) for step, loss in enumerate([3.0, 2.0, 1.0, 0.5])),
        *(("sft/timing/sample", step, 0.5) for step in range(4)),
        ("eval/sft/n", 4, 4.0),
        ("eval/sft/em", 4, 0.25),
        ("rl/em", 0, 0.75),
        ("rl/avg_at/pass_2", 0, 1.0),
    ]
)
