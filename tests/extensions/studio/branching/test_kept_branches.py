"""Samples of a branch are stored, however its command ends."""

from pathlib import Path

import pytest

from branching_parts import Reader, branch, environment, recorded
from fieldcraft.extensions.studio.branching.sample_store import SampleStore, open_sample_store
from fieldcraft.records.events import Event
from fieldcraft.types import (
    UserError,
)


def test_samples_are_kept_and_more_are_added(tmp_path: Path) -> None:
    env = environment()
    whole = recorded(env)
    engine = Reader()
    with open_sample_store(tmp_path / "b", {"seed": 5}, whole) as store:
        few = branch(env, whole, 2, samples=3, store=store, engine=engine)
        assert engine.asked == 3
        more = branch(env, whole, 2, samples=5, store=store, engine=engine)
        assert engine.asked == 5
    assert [t.ids for t in more.original[:3]] == [t.ids for t in few.original]
    fresh = branch(env, whole, 2, samples=5)
    assert [t.ids for t in more.original] == [t.ids for t in fresh.original]


def test_what_was_sampled_before_ctrl_c_is_kept(tmp_path: Path) -> None:
    env = environment()
    whole = recorded(env)
    messages = []

    def interrupt(event: Event) -> None:
        messages.append(event)
        if len(messages) == 3:  # the header and two samples
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        branch(env, whole, 2, samples=6, store=SampleStore(tmp_path), on_event=interrupt)
    assert (tmp_path / "after-2.jsonl").read_text().count("\n") == 2
    engine = Reader()
    again = branch(env, whole, 2, samples=6, store=SampleStore(tmp_path), engine=engine)
    assert engine.asked == 4
    assert [t.ids for t in again.original] == [
        t.ids for t in branch(env, whole, 2, samples=6).original
    ]


def test_a_line_that_a_kill_cut_short_is_sampled_again(tmp_path: Path) -> None:
    env = environment()
    whole = recorded(env)
    store = SampleStore(tmp_path)
    first = branch(env, whole, 2, samples=3, store=store)
    file = tmp_path / "after-2.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    engine = Reader()
    again = branch(env, whole, 2, samples=3, store=store, engine=engine)
    assert engine.asked == 1
    assert [t.answer for t in again.original] == [t.answer for t in first.original]


def test_other_settings_and_other_folders_are_refused(tmp_path: Path) -> None:
    whole = recorded(environment())
    with open_sample_store(tmp_path / "b", {"seed": 5}, whole):
        pass
    refused = pytest.raises(UserError, match="holds branches with seed=5, not 6: choose another")
    with refused, open_sample_store(tmp_path / "b", {"seed": 6}, whole):
        pass
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine.txt").touch()
    refused = pytest.raises(UserError, match="exists and holds no branches")
    with refused, open_sample_store(tmp_path / "c", {}, whole):
        pass


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    whole = recorded(environment())
    with (
        open_sample_store(tmp_path / "b", {}, whole),
        pytest.raises(UserError, match="by another process"),
        open_sample_store(tmp_path / "b", {}, whole),
    ):
        pass
