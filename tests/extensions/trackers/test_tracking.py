"""Trackers receive each step and evaluation once, and no tracker can harm a run."""

import json
import re
from pathlib import Path

import pytest
from tracking_parts import CURVES, Played, open_folder, play_stopped_run, rewind

from fieldcraft.cli.start import GRACE_SECONDS
from fieldcraft.extensions.trackers import subscriber as tracking_module
from fieldcraft.extensions.trackers.base import flatten_metrics
from fieldcraft.runs.context import attach_trackers
from fieldcraft.runs.folder import RunFolder
from fieldcraft.types import UserError

LINES, STUCK = "own_tracker:Lines", "own_tracker:Stuck"


@pytest.fixture(autouse=True)
def own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "own"))


def curves(folder: RunFolder, name: str = "lines.txt") -> list[tuple[str, int, float]]:
    lines = [line.split() for line in (folder.path / name).read_text().splitlines()]
    return sorted((line[0], int(line[1]), float(line[2])) for line in lines if "/" in line[0])


def test_a_stopped_run_goes_on_with_the_same_curves(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "out", [LINES])
    played = play_stopped_run(folder)
    assert curves(folder) == CURVES
    lines = (folder.path / "lines.txt").read_text().splitlines()
    opened = [line for line in lines if line.startswith("open")]
    assert len(opened) == 2
    assert opened[0] == opened[1]  # the same id
    assert re.fullmatch(r"open [0-9a-f]{16} out None", opened[0])
    assert [line for line in lines if line == "close"] == ["close"] * 2
    assert played.said == [f"{LINES}: cat lines.txt"] * 2


def test_a_kill_loses_and_doubles_no_point(tmp_path: Path) -> None:
    """The trackers.json file is older than the contents of the run folder."""
    folder = open_folder(tmp_path / "out", [LINES])
    played = Played(folder)
    with attach_trackers(folder, played.events):
        before = folder.trackers_file.read_text()
        for number in range(3):
            played.step("sft", number, loss=1.0)
    folder.trackers_file.write_text(before)
    for last in (2, 4):  # killed again before it has caught up
        with attach_trackers(folder, played.events):
            before = folder.trackers_file.read_text()
            rewind(folder, "sft", 1)
            for number in range(1, last):
                played.step("sft", number, loss=2.0)
        folder.trackers_file.write_text(before)
    assert curves(folder) == [
        *(("sft/loss", step, 1.0) for step in range(3)),
        ("sft/loss", 3, 2.0),
    ]


def test_a_tracker_that_fails_is_told_the_rest_later(tmp_path: Path) -> None:
    broken = {"name": LINES, "fails_at": 1}
    folder = open_folder(tmp_path / "out", [broken])
    played = Played(folder)
    with attach_trackers(folder, played.events):
        for number in range(3):
            played.step("sft", number, loss=float(number))
        played.evaluate("sft", {"n": 2, "em": 0.5})
    assert curves(folder) == [("sft/loss", 0, 0.0)]
    (sentence,) = played.said[1:]
    assert sentence == (
        f"the tracker '{LINES}' failed (ConnectionError: nobody there): it is disabled for the"
        " rest of the run. Missing metrics are sent when the run is resumed."
    )
    with attach_trackers(open_folder(folder.path, [LINES]), played.events):
        played.step("sft", 3, loss=3.0)
    assert curves(folder) == [
        ("eval/sft/em", 3, 0.5),
        ("eval/sft/n", 3, 2.0),
        *(("sft/loss", number, float(number)) for number in range(4)),
    ]


def test_a_tracker_may_come_later_and_pause(tmp_path: Path) -> None:
    """A run may change its trackers on resumption, and a new tracker receives everything."""
    out = tmp_path / "out"
    played = Played(open_folder(out, []))
    with attach_trackers(open_folder(out, []), played.events):
        played.step("sft", 0, loss=0.0)
    assert not (out / "trackers.json").exists()
    for number, trackers in enumerate([[LINES], [], [LINES]], start=1):
        folder = open_folder(out, trackers)
        with attach_trackers(folder, played.events):
            played.step("sft", number, loss=float(number))
    assert curves(folder) == [("sft/loss", number, float(number)) for number in range(4)]


def test_a_server_that_never_answers_keeps_no_run_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_module, "CLOSE_TIMEOUT_SECONDS", 0.2)
    folder = open_folder(tmp_path / "out", [STUCK, LINES])
    played = Played(folder)
    with attach_trackers(folder, played.events):
        played.step("sft", 0, loss=1.0)
    assert any(f"'{STUCK}' has not received all metrics by the end" in text for text in played.said)
    state = json.loads(folder.trackers_file.read_text())["told"]
    assert state[STUCK] == {"steps": {}, "evaluations": [], "behind": True}
    assert state[LINES] == {"steps": {"sft": 1}, "evaluations": [], "behind": False}


def test_the_seeds_of_a_run_are_a_group(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "recipe.json").write_text('{"seeds": [0, 1]}')
    folder = open_folder(tmp_path / "table" / "seed-1", [LINES])
    with attach_trackers(folder, Played(folder).events):
        pass
    assert " table/seed-1 table\n" in (folder.path / "lines.txt").read_text()


def test_names_are_what_every_tracker_takes() -> None:
    row = {"loss": 1, "none": None, "list": [1], "flag": True, "pass@4": 0.5, "a": {"b c": 2}}
    assert flatten_metrics("rl", row) == {
        "rl/loss": 1,
        "rl/flag": 1,
        "rl/pass_4": 0.5,
        "rl/a/b c": 2,
    }


@pytest.mark.parametrize(
    ("trackers", "sentence"),
    [
        (["tensorbord"], "did you mean 'tensorboard'"),
        (["tensorboard", "tensorboard"], "names 'tensorboard' twice"),
        ([{"name": LINES, "fail_at": 1}], "did you mean 'fails_at'"),
        ([{"name": LINES, "fails_at": "never"}], "'fails_at' .* whole number"),
        (
            ["own_tracker:NEVER"],
            "make it a subclass of fieldcraft.extensions.trackers.base.Tracker",
        ),
    ],
)
def test_a_mistake_is_a_sentence_before_the_run(
    tmp_path: Path, trackers: list[object], sentence: str
) -> None:
    def begin() -> None:
        folder = open_folder(tmp_path / "out", trackers)
        with attach_trackers(folder, Played(folder).events):
            pass

    with pytest.raises(UserError, match=sentence):
        begin()


def test_a_missing_package_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "trackio", None)
    monkeypatch.delitem(
        __import__("sys").modules, "fieldcraft.extensions.trackers.trackio", raising=False
    )
    folder = open_folder(tmp_path / "out", ["trackio"])
    with pytest.raises(UserError, match=r"pip install 'fieldcraft\[trackio\]'"):  # noqa: SIM117
        with attach_trackers(folder, Played(folder).events):
            pass


def test_a_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "out", [LINES])
    folder.trackers_file.write_text('{"id": 3}')
    with pytest.raises(UserError, match=r"trackers\.json .* rename .* to start new curves"):  # noqa: SIM117
        with attach_trackers(folder, Played(folder).events):
            pass


def test_a_stopped_run_waits_longer_than_its_trackers_may_take() -> None:
    """A second interrupt would lose the progress of the trackers."""
    assert tracking_module.CLOSE_TIMEOUT_SECONDS < GRACE_SECONDS
