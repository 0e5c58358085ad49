"""Demonstrations and pairs as text: written files are read back, and errors are located."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.steps_io import (
    ContrastivePair,
    is_demonstration_file,
    make_untokenised_trajectory,
    parse_steps,
    read_demonstrations,
    read_pairs,
    serialise_steps,
    write_demonstrations,
    write_pairs,
)
from fieldcraft.data.tasks import read_tasks
from fieldcraft.records.transcript import EntryKind, build_transcript
from fieldcraft.types import (
    Answer,
    Observation,
    Status,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
    UserError,
)

TASK = Task("q/1", "who?", ("Oslo", "the Oslo"), {"way": "coa", "hops": 2})
STEPS = [
    Thought("I must search."),
    ToolCall("search", {"query": "a", "k": [1, None, {"x": 0.5}]}),
    Observation("result 1: \u2028 «x»\n"),
    Answer("Oslo"),
]
text = st.text()
steps = st.lists(
    st.builds(Thought, text, st.sampled_from(ThoughtRole))
    | st.builds(Answer, text)
    | st.builds(Observation, text)
    | st.builds(ToolCall, text, st.dictionaries(text, text | st.integers() | st.none()))
)


@given(steps)
def test_steps_come_back(given: Any) -> None:
    assert parse_steps(json.loads(json.dumps(serialise_steps(given))), "here") == tuple(given)


def test_files_come_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "demonstrations.jsonl"
    write_demonstrations(file, [(TASK, STEPS), (TASK, [])])
    assert read_demonstrations(file) == [(TASK, STEPS), (TASK, [])]
    assert is_demonstration_file(file)
    assert read_tasks(file)[0] == TASK  # such a file is also a file of questions
    pair = ContrastivePair(TASK, (STEPS[0],), (STEPS[1],), (STEPS[3],))
    write_pairs(tmp_path / "pairs.jsonl", [pair])
    assert read_pairs(tmp_path / "pairs.jsonl") == [pair]
    assert not is_demonstration_file(tmp_path / "pairs.jsonl")
    assert pair.chooses_tool
    assert not ContrastivePair(TASK, (), pair.rejected, pair.chosen).chooses_tool


def test_the_format_is_as_documented(tmp_path: Path) -> None:
    write_demonstrations(tmp_path / "x.jsonl", [(TASK, STEPS)])
    assert json.loads((tmp_path / "x.jsonl").read_text()) == {
        "id": "q/1",
        "question": "who?",
        "golden_answers": ["Oslo", "the Oslo"],
        "metadata": {"way": "coa", "hops": 2},
        "steps": [
            {"thought": "I must search."},
            {"action": "search", "arguments": {"query": "a", "k": [1, None, {"x": 0.5}]}},
            {"observation": "result 1: \u2028 «x»\n"},
            {"answer": "Oslo"},
        ],
    }


@pytest.mark.parametrize(
    "change",
    [
        {"steps": None},
        {"steps": [{"thought": 3}]},
        {"steps": [{"action": "search"}]},
        {"steps": ["text"]},
        {"steps": [{"thought": "\ud800" * 9, "x": 1, "answer": []} | {"thought": None}]},
        {"id": 3},
        {"golden_answers": "Oslo"},
        {"golden_answers": [3]},
        {"metadata": None},
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "x.jsonl"
    write_demonstrations(file, [(TASK, STEPS)])
    line = json.dumps(json.loads(file.read_text()) | change)
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(UserError, match=r"x\.jsonl, line 2") as caught:
        read_demonstrations(file)
    assert "\n" not in str(caught.value)


def test_a_pair_with_an_empty_side(tmp_path: Path) -> None:
    write_pairs(tmp_path / "x.jsonl", [ContrastivePair(TASK, (), (STEPS[3],), ())])
    with pytest.raises(UserError, match="line 1: one side of the pair is empty"):
        read_pairs(tmp_path / "x.jsonl")


def test_other_files_hold_no_steps(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"gen_text_store": ""}\n')
    (tmp_path / "x.txt").write_text("text")
    (tmp_path / "empty.jsonl").write_text("")
    assert not any(
        is_demonstration_file(tmp_path / name) for name in ("x.jsonl", "x.txt", "empty.jsonl")
    )


def test_steps_can_be_looked_at() -> None:
    noted = replace(TASK, meta={"right": True})
    record = make_untokenised_trajectory(
        noted, [Thought("Hm."), ToolCall("search", {"query": "a"}), *STEPS[2:]]
    )
    assert [(entry.kind, entry.text) for entry in build_transcript(record)] == [
        (EntryKind.THOUGHT, "Hm."),
        (EntryKind.ACTION, "a"),
        (EntryKind.OBSERVATION, "result 1: \u2028 «x»"),
        (EntryKind.ANSWER, "Oslo"),
    ]
    assert (record.status, record.answer, record.rewards) == (
        Status.ANSWERED,
        "Oslo",
        {"right": 1.0},
    )
    assert record.is_correct is True
    assert make_untokenised_trajectory(TASK, STEPS).is_correct is None  # no grade is recorded
    assert record.num_executed_calls == 1
    wrong = make_untokenised_trajectory(
        Task("t", "who?", ("Oslo",), {"rejected": "cut off"}), STEPS[:1]
    )
    assert (wrong.is_correct, wrong.error, wrong.status) == (None, "cut off", "no_answer")
    roles = make_untokenised_trajectory(
        TASK, [Thought("Hm."), Thought("Look.", ThoughtRole.PLAN), Thought("So.")]
    )
    assert build_transcript(roles)[0].text == "Hm.\n<plan>Look.</plan>\nSo."
    several = make_untokenised_trajectory(TASK, STEPS)
    assert build_transcript(several)[1].text == '{"query": "a", "k": [1, null, {"x": 0.5}]}'
