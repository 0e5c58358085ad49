"""Lists of trajectories: results, their order, and changes of files."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.extensions.studio.downloads import iter_csv_lines, iter_json_lines
from fieldcraft.extensions.studio.queries import TrajectoryLibrary, make_search_terms, parse_query
from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.records.training_rollouts import write_training_rollouts
from fieldcraft.records.trajectories import to_json
from fieldcraft.types import Status, UserError
from view_parts import HOSTILE, append, training_rollout, trajectory, write_run


def library(*runs: Path) -> TrajectoryLibrary:
    trajectories = TrajectoryLibrary(load_run_views(runs))
    advance(trajectories)
    return trajectories


def advance(trajectories: TrajectoryLibrary) -> None:
    trajectories.update_files()
    for reader in trajectories.readers:
        while reader.read_next_chunk():
            pass
    trajectories.revision += 1


def found(trajectories: TrajectoryLibrary, **parameters: str) -> list[tuple[Any, ...]]:
    rows = trajectories.get_rows(parse_query(parameters))
    return [(row["part"], row["step"], row["number"], row["task"]) for row in rows]


@pytest.fixture
def trajectories(tmp_path: Path) -> TrajectoryLibrary:
    return library(write_run(tmp_path / "one"))


def test_rows_come_in_the_order_of_the_run(trajectories: TrajectoryLibrary) -> None:
    rows = found(trajectories)
    assert [part for part, *_ in rows] == ["sft1"] * 3 + ["rl1"] * 11
    assert rows[3] == ("rl1", 0, 0, "q0")
    assert rows[-1] == ("rl1", None, 2, "t2")
    assert len(trajectories.find(parse_query({}))) == 14
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
    assert len(trajectories.find(parse_query(parameters))) == count
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
        trajectories.find(parse_query({"calls": "x"}))


def test_advantages_and_versions_are_columns(trajectories: TrajectoryLibrary) -> None:
    rows = trajectories.get_rows(parse_query({"kind": "training", "step": "4"}))
    # for the four tokens of the policy
    assert [row["advantage"] for row in rows] == [-0.5, 0.5, -0.5, 0.5]
    assert {row["version"] for row in rows} == {4}


def test_an_advantage_that_is_not_a_number_is_unknown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    group = [training_rollout(4, number, bool(number % 2)) for number in range(4)]
    group[::2] = [replace(one, advantages=[math.nan] * 9) for one in group[::2]]
    write_training_rollouts(run / "rl1" / "rollouts", group)
    listed = library(run).get_rows(parse_query({"step": "4", "sort": "advantage"}))
    assert [row["advantage"] for row in listed] == [0.5, 0.5, None, None]


def test_a_search_ignores_accents_and_case(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    append(run / "evaluations" / "rl1.jsonl", trajectory("odd", question="Où est ŽIŽKOV, 北京?"))
    trajectories = library(run)
    for words in ("zizkov", "Žižkov", "OU EST", "北京", '"est zizkov 北京"'):
        assert found(trajectories, q=words) == [("rl1", None, 3, "odd")], words
    assert found(trajectories, q="izkov") == []


def test_a_file_that_grows_is_read_on_and_half_a_line_waits(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    trajectories = library(run)
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
    assert len(trajectories.find(parse_query({}))) == 15


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    trajectories = library(run)
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
    assert len(trajectories.find(parse_query({}))) == 11


def test_a_file_that_was_rewritten_with_the_same_size_is_read_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    trajectories = library(run)
    file = run / "evaluations" / "rl1.jsonl"
    before = file.stat()
    file.write_text(file.read_text().replace("Dro", "Zor"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    advance(trajectories)
    assert [row[3] for row in found(trajectories, q="zor", kind="evaluation")] == ["t1"]
    assert len(trajectories.find(parse_query({}))) == 14


def test_a_file_that_grows_is_not_read_from_its_start(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    trajectories = library(run)
    before = trajectories.find(parse_query({"part": "rl1"}))
    append(run / "evaluations" / "rl1.jsonl", trajectory("late"))
    advance(trajectories)
    after = trajectories.find(parse_query({"part": "rl1"}))
    assert all(one is other for one, other in zip(before, after, strict=False))
    assert len(after) == len(before) + 1


def test_a_damaged_line_is_named_and_the_others_are_there(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    file = run / "evaluations" / "rl1.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], '{"task": 1', "", lines[2], ""]))
    trajectories = library(run)
    assert [row[2] for row in found(trajectories, part="rl1", kind="evaluation")] == [0, 3]
    assert trajectories.get_progress()["notes"] == [f"{file}, line 2 contains no trajectory."]


def test_the_last_line_of_a_file_may_lack_its_end(tmp_path: Path) -> None:
    """Other programs and editors leave out the last line feed, and a writer adds it later."""
    for name in ("first", "second"):
        line = to_json(trajectory(name))
        (tmp_path / f"{name}.jsonl").write_text(f"{to_json(trajectory())}\n{line}")
    trajectories = library(tmp_path)
    expected = [("first", None, 0, "t0"), ("first", None, 1, "first")]
    expected += [("second", None, 0, "t0"), ("second", None, 1, "second")]
    assert found(trajectories) == expected
    progress = trajectories.get_progress()
    assert progress["done"] == progress["of"]
    lines = b"".join(iter_json_lines(trajectories.find(parse_query({}))))
    assert [json.loads(line)["task"]["id"] for line in lines.splitlines()][1::2] == [
        "first",
        "second",
    ]
    with (tmp_path / "second.jsonl").open("a") as file:
        file.write(f"\n{to_json(trajectory('third'))}\n" + '{"half a li')
    advance(trajectories)
    assert found(trajectories) == [*expected, ("second", None, 2, "third")]
    progress = trajectories.get_progress()
    assert (progress["done"], progress["notes"]) == (progress["of"], [])


def test_a_last_line_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text(to_json(trajectory("a")))
    trajectories = library(tmp_path)
    file.write_text(f"{to_json(trajectory('another, longer one'))}\n")
    advance(trajectories)
    assert found(trajectories) == [("one", None, 0, "another, longer one")]


def test_nothing_is_written_into_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")

    def contents() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in run.rglob("*") if p.is_file()}

    before = contents()
    library(run)
    assert contents() == before


@given(st.text(max_size=40))
def test_any_search_is_a_query(tmp_path_factory: pytest.TempPathFactory, words: str) -> None:
    """No text typed by a user is an invalid search."""
    global _any
    if _any is None:
        place = tmp_path_factory.mktemp("any")
        _any = library(write_run(place / "one"))
    assert 0 <= len(_any.find(parse_query({"q": words}))) <= 14


_any: TrajectoryLibrary | None = None


def test_words_of_a_search() -> None:
    assert make_search_terms("who MET") == [b" who ", b" met"]
    assert make_search_terms('"who met" dr') == [b" who met ", b" dr"]
    assert make_search_terms('met "who is"') == [b" met ", b" who is "]
    assert make_search_terms('a"b') == [b" ab"]
    assert make_search_terms("e-mail ") == [b" e mail"]
    assert make_search_terms('"" -') == []
    assert make_search_terms("tool_call") == [b" tool call"]


def test_a_search_finds_words_in_a_sentence_without_spaces(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    for task, question in {"tower": "東京タワーは高い。", "hello": "สวัสดีชาวโลกทั้งหลาย"}.items():
        append(run / "evaluations" / "rl1.jsonl", trajectory(task, question=question))
    trajectories = library(run)
    for words, expected in {
        "タワー": ["tower"],
        "京タ": ["tower"],
        "タ高": [],
        "ชาวโลก": ["hello"],
        "สวัสดี": ["hello"],
        "สวัสดีโลก": [],
    }.items():
        found = trajectories.find(parse_query({"q": words}))
        assert [listed.row.task for listed in found] == expected, words


def test_downloads_are_the_records_and_the_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    odd = trajectory("=1+1", question=f"{HOSTILE}\n", status=Status.TRUNCATED)
    append(run / "evaluations" / "rl1.jsonl", odd)
    trajectories = library(run)
    listed = trajectories.find(parse_query({"part": "rl1", "kind": "evaluation"}))
    lines = [json.loads(line) for line in iter_json_lines(listed)]
    assert [line["task"]["id"] for line in lines] == ["t0", "t1", "t2", "=1+1"]
    assert lines[-1]["segments"][0]["text"] == f"{HOSTILE}\n"
    head, *rows = iter_csv_lines(listed)
    assert head.startswith("run,part,kind,number,task,question")
    assert rows[0].startswith(
        "one,rl1,evaluation,0,t0,Where is Kelm?,Sor,Sor,heldout,answered,True"
    )
    assert ",'=1+1," in rows[-1]  # not a formula
