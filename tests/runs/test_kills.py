"""A run that is killed in every part, before every kind of change of a file, ends with the same
files."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kill_parts import PARTS, KilledRun, Moment, choose_kills
from report_parts import data_of, unpacked
from retrieval_parts import write_towns

BASE = """
name: kills
device: cpu
instruction: ""
world: {name: "kill_parts:ProbedAtlas", people: 40, variants: 2}
tiny_model: {layers: 2, width: 32, heads: 2}
search: {top_k: 1}
"""
TRAINING = """
dialect: afm-mhqa
budget: {max_calls: 2, max_turn_tokens: 8, max_context_tokens: 600}
teacher: {team: afm}
closed_book: {samples: 2}
select: {questions: 8, closed_book_model: base, closed_book_samples: 2, max_closed_book_accuracy: 1}
stages:
  base:
    type: sft
    dataset: base
    max_examples: 8
    steps: 1
    batch_size: 2
    evaluate: false
    optim: {lr: 1.0e-3}
  rl:
    type: rl
    steps: 4
    questions_per_step: 2
    group_size: 2
    checkpoint_every: 2
    entropy_coef: 0.01 # so that steps train, whatever this model is rewarded for
    optim: {lr: 1.0e-3}
evaluation: {splits: {heldout: 4}, workflows: [workflow], teachers: [lone]}
"""
COLLECTION = """
stages: {}
collect: {questions: 8, pair_questions: 4}
"""


def write_recipe(text: str, folder: Path) -> list[str]:
    """Write a recipe, and return the arguments of a command."""
    (folder / "kills.yaml").write_text(text)
    return [str(folder / "kills.yaml")]


RECIPES: Mapping[str, Callable[[Path], list[str]]] = {
    "training": partial(write_recipe, BASE + TRAINING),
    "collection": partial(write_recipe, BASE + COLLECTION),
    "retrieval": write_towns,
}
CLOCKED = "timeline.jsonl"  # a journal of times
# Journals of concurrent jobs, in the order in which they end.
UNORDERED = ("knowledge.jsonl", "closed_book.jsonl", "samples.jsonl", "attempts.jsonl")


class Ended(NamedTuple):
    """Uninterrupted run, and one that was killed at some moments."""

    whole: Path
    killed: Path
    kills: Sequence[Moment]


@pytest.fixture(scope="module")
def run_both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ended]:
    """Return a function that runs a recipe by name, without and with kills."""

    @cache
    def run(name: str) -> Ended:
        folder = tmp_path_factory.mktemp(name)
        arguments = RECIPES[name](folder)
        whole, killed = (KilledRun(arguments, folder / out) for out in ("whole", "killed"))
        assert whole.go_on() == 0, whole.output[-2000:]
        kills = choose_kills(whole.read_moments())
        for moment in kills:
            assert (moment, killed.go_on(moment)) == (moment, -9), killed.output[-2000:]
        assert killed.go_on() == 0, killed.output[-2000:]
        return Ended(whole.out, killed.out, kills)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_killed_run_ends_with_the_same_files(name: str, run_both: Callable[[str], Ended]) -> None:
    whole, killed, _ = run_both(name)
    files = list_files(whole)
    assert list_files(killed) == files
    assert [f for f in files if read_content(killed / f) != read_content(whole / f)] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_a_run_is_killed(part: str, run_both: Callable[[str], Ended]) -> None:
    """If this fails for a new kind of step: add the step to a recipe of this file."""
    kills = {kill for name in RECIPES for kill in run_both(name).kills if kill.part == part}
    assert kills
    if part == "train":  # before and after the commit of a checkpoint, and the end of the stage
        changed = {(kill.event, re.sub(r"\d+", "#", kill.path)) for kill in kills}
        assert changed > {
            ("os.rename", "rl/step-#"),
            ("os.rename", "rl/rollouts/#.jsonl"),
            ("append", "rl/metrics.jsonl"),
            ("os.rename", "rl/model"),
            ("os.rename", "rl/stage.json"),
            ("shutil.rmtree", "rl/step-#"),
        }
    if part == "evaluate":  # in the middle, and before the summary
        assert {Path(kill.path).name for kill in kills} == {"rl: evaluation", "rl.jsonl", "rl.json"}


def list_files(run: Path) -> list[str]:
    """Return the files of a run; names of files of the search library are random."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return sorted({re.sub(r"[0-9a-f]{32}", "*", str(path.relative_to(run))) for path in files})


def read_content(path: Path) -> Any:
    """Return the content of a file without measured times."""
    if path.name == CLOCKED or path.parent.name == "bm25":
        return None
    match path.suffix:
        case ".json":
            return without_times(json.loads(path.read_text()))
        case ".jsonl":
            lines = [without_times(json.loads(line)) for line in path.read_text().splitlines()]
            return sorted(lines, key=repr) if path.name in UNORDERED else lines
    if path.name == "report.html":
        return read_report_page(path.read_text())
    return path.read_bytes()


def read_report_page(page: str) -> Any:
    """Return the content of a report page without measured times."""
    charts = [c for c in data_of(page)["charts"] if c["title"] != "Throughput"]
    text = re.sub(r"(?m)^.*(\b[\d.]+ (s|min)(<| ·)| time\b|data:text/csv|<script).*$", "", page)
    return text, charts, without_times(unpacked(page))


def without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: without_times(v) for k, v in value.items() if "second" not in k}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value
