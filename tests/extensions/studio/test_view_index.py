"""The index of trajectories: results, their order, and changes of files."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.extensions.studio.exports import iter_csv_lines, iter_json_lines
from fieldcraft.extensions.studio.index import TrajectoryIndex, find_index_path
from fieldcraft.extensions.studio.queries import TrajectoryLibrary, make_fts_query, parse_query
from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.records.trajectories import to_json
from fieldcraft.types import Status, UserError
from view_parts import HOSTILE, append, trajectory, write_run


def library(*runs: Path, index: Path) -> TrajectoryLibrary:
    trajectories = TrajectoryLibrary(load_run_views(runs), TrajectoryIndex(index))
    advance(trajectories)
    return trajectories


def advance(trajectories: TrajectoryLibrary) -> None:
    for run in trajectories.runs:
        for file in run.iter_files():
            while trajectories.index.index_next_chunk(file):
                pass
    trajectories.refresh()


def found(trajectories: TrajectoryLibrary, **parameters: str) -> list[tuple[Any, ...]]:
    rows = trajectories.get_rows(parse_query(parameters))
    return [(row["part"], row["step"], row["number"], row["task"]) for row in rows]


@pytest.fixture
def trajectories(tmp_path: Path) -> TrajectoryLibrary:
    return library(write_run(tmp_path / "one"), index=tmp_path / "index.sqlite")


def test_rows_come_in_the_order_of_the_run(trajectories: TrajectoryLibrary) -> None:
    rows = found(trajectories)
    assert [part for part, *_ in rows] == ["sft1"] * 3 + ["rl1"] * 11
    assert rows[3] == ("rl1", 0, 0, "q0")
    assert rows[-1] == ("rl1", None, 2, "t2")
    assert trajectories.count(parse_query({})) == 14
    assert found(trajectories) == [
        (row["part"], row["step"], row["number"], row["task"])
        for page in range(0, 14, 5)
        for row in trajectories.get_rows(parse_query({}), page, 5)
    ]


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ({"part": "sft1"}, 3),
        ({"kind": "training"}, 8),
        ({"kind": "training", "step": "4"}, 4),
        ({"split": "train"}, 8),
        ({"split": "no such"}, 0),
        ({"status": "answered", "right": "1"}, 7),
        ({"calls": "2"}, 2),
        ({"reward": "0"}, 7),
        ({"reward": "none"}, 0),
        ({"step": "none"}, 6),
        ({"task": "t1"}, 2),
        ({"run": "one"}, 14),
        ({"run": "two"}, 0),
        ({"q": "dro"}, 2),  # questions are part of the text
        ({"q": "sor KEL"}, 14),  # the last word matches as a prefix, in any case
        ({"q": '"lies in"'}, 12),
        ({"q": '"in lies"'}, 0),
        ({"q": "ELM"}, 0),
        ({"q": "'; DROP TABLE rows --"}, 0),
        ({"q": '"'}, 14),
    ],
)
def test_filters_and_the_search(
    trajectories: TrajectoryLibrary, parameters: dict[str, str], count: int
) -> None:
    assert trajectories.count(parse_query(parameters)) == count
    assert len(found(trajectories, **parameters)) == count


def test_every_column_sorts_both_ways(trajectories: TrajectoryLibrary) -> None:
    up = [row["calls"] for row in trajectories.get_rows(parse_query({"sort": "calls"}))]
    assert up == sorted(up)
    down = [row["calls"] for row in trajectories.get_rows(parse_query({"sort": "-calls"}))]
    assert down == up[::-1]
    steps = [row["step"] for row in trajectories.get_rows(parse_query({"sort": "-step"}))]
    assert steps == [4] * 4 + [0] * 4 + [None] * 6  # unknown values come last
    with pytest.raises(UserError, match="there is no column 'id; DROP'"):
        parse_query({"sort": "id; DROP"})
    with pytest.raises(UserError, match="calls=x is not a number"):
        trajectories.count(parse_query({"calls": "x"}))


def test_advantages_and_versions_are_columns(trajectories: TrajectoryLibrary) -> None:
    rows = trajectories.get_rows(parse_query({"kind": "training", "step": "4"}))
    # for the four tokens of the policy
    assert [row["advantage"] for row in rows] == [-0.5, 0.5, -0.5, 0.5]
    assert {row["version"] for row in rows} == {4}


def test_a_file_that_grows_is_read_on_and_half_a_line_waits(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    trajectories = library(run, index=tmp_path / "index.sqlite")
    file = run / "evaluations" / "rl1.jsonl"
    whole = to_json(trajectory("late"))
    with file.open("a") as grown:
        grown.write(whole[:50])
    advance(trajectories)
    assert found(trajectories, task="late") == []
    with file.open("a") as grown:
        grown.write(f"{whole[50:]}\n")
    advance(trajectories)
    assert found(trajectories, task="late") == [("rl1", None, 3, "late")]
    assert trajectories.count(parse_query({})) == 15


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    trajectories = library(run, index=tmp_path / "index.sqlite")
    file = run / "evaluations" / "rl1.jsonl"
    draft = tmp_path / "draft"
    append(draft, trajectory("new", question="Where is Zor?"))
    draft.replace(file)
    advance(trajectories)
    assert found(trajectories, part="rl1", kind="evaluation") == [("rl1", None, 0, "new")]
    assert found(trajectories, q="zor") == [("rl1", None, 0, "new")]
    assert found(trajectories, q="dro", part="rl1") == []  # its row was removed
    file.unlink()
    advance(trajectories)
    assert found(trajectories, part="rl1", kind="evaluation") == []
    trajectories.index.drop_missing_files()
    assert trajectories.count(parse_query({})) == 11


def test_a_damaged_line_is_named_and_the_others_are_there(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    file = run / "evaluations" / "rl1.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], '{"task": 1', "", lines[2], ""]))
    trajectories = library(run, index=tmp_path / "index.sqlite")
    assert [row[2] for row in found(trajectories, part="rl1", kind="evaluation")] == [0, 3]
    assert trajectories.get_progress()["notes"] == [f"{file}, line 2 contains no trajectory."]


def test_two_pages_share_an_index_and_each_sees_its_runs(tmp_path: Path) -> None:
    first = library(write_run(tmp_path / "one"), index=tmp_path / "index.sqlite")
    second = library(write_run(tmp_path / "two"), index=tmp_path / "index.sqlite")
    assert {row["run"] for row in second.get_rows(parse_query({}))} == {"two"}
    assert {row["run"] for row in first.get_rows(parse_query({}))} == {"one"}
    assert first.count(parse_query({"q": "dro"})) == second.count(parse_query({"q": "dro"})) == 2


def test_nothing_is_written_into_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")

    def contents() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in run.rglob("*") if p.is_file()}

    before = contents()
    library(run, index=tmp_path / "index.sqlite")
    assert contents() == before


def test_the_index_is_in_the_folder_for_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_index_path().parent == tmp_path / "fieldcraft"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert find_index_path().parent.exists()


@given(st.text(max_size=40))
def test_any_search_is_a_query(tmp_path_factory: pytest.TempPathFactory, words: str) -> None:
    """No text typed by a user is an invalid search."""
    global _any
    if _any is None:
        place = tmp_path_factory.mktemp("any")
        _any = library(write_run(place / "one"), index=place / "index.sqlite")
    assert 0 <= _any.count(parse_query({"q": words})) <= 14


_any: TrajectoryLibrary | None = None


def test_words_of_a_search() -> None:
    assert make_fts_query("who met") == '"who" "met"*'
    assert make_fts_query('"who met" dr') == '"who met" "dr"*'
    assert make_fts_query('met "who is"') == '"met" "who is"'
    assert make_fts_query('a"b') == '"ab"*'
    assert make_fts_query('""') == ""


def test_downloads_are_the_records_and_the_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    odd = trajectory("=1+1", question=f"{HOSTILE}\n", status=Status.TRUNCATED)
    append(run / "evaluations" / "rl1.jsonl", odd)
    trajectories = library(run, index=tmp_path / "index.sqlite")
    ids = trajectories.find_ids(parse_query({"part": "rl1", "kind": "evaluation"}))
    lines = [json.loads(line) for line in iter_json_lines(trajectories, ids)]
    assert [line["task"]["id"] for line in lines] == ["t0", "t1", "t2", "=1+1"]
    assert lines[-1]["segments"][0]["text"] == f"{HOSTILE}\n"
    head, *rows = iter_csv_lines(trajectories, ids)
    assert head.startswith("run,part,kind,number,task,question")
    assert rows[0].startswith(
        "one,rl1,evaluation,0,t0,Where is Kelm?,Sor,Sor,heldout,answered,True"
    )
    assert ",'=1+1," in rows[-1]  # not a formula
