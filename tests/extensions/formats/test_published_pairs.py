"""Pairs in the format of preference trainers, and reasons for leaving out others."""

from pathlib import Path
from typing import Any

import pytest

from fieldcraft.data.file_formats import read_any_pairs
from fieldcraft.data.records import RecordError
from fieldcraft.data.steps_io import ContrastivePair, write_pairs
from fieldcraft.extensions.formats.chat_files import parse_pair
from fieldcraft.types import Answer, Observation, Task, Thought, ToolCall, UserError
from source_files import lines

USER = {"role": "user", "content": "Q?"}
RESULT = {"role": "tool", "content": "found"}


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(*queries: str) -> dict[str, Any]:
    made = [{"function": {"name": "search", "arguments": {"q": query}}} for query in queries]
    return {"role": "assistant", "content": "", "tool_calls": made}


def search(query: str) -> ToolCall:
    return ToolCall("search", {"q": query})


def test_what_both_sides_share_comes_before_them() -> None:
    shared = [USER, calls("a"), RESULT]
    record = {
        "prompt": shared,
        "chosen": [reply("A")],
        "rejected": [calls("b"), RESULT, reply("B")],
    }
    pair = parse_pair(record)
    assert pair.before == (search("a"), Observation("found"))
    assert (pair.chosen, pair.rejected) == ((Answer("A"),), (search("b"),))
    whole = {
        "chosen": [*shared, reply("A")],
        "rejected": [*shared, calls("b"), RESULT, reply("B")],
    }
    assert parse_pair(whole) == pair


def test_a_side_is_its_first_turn_with_all_of_its_calls() -> None:
    chosen = [calls("a", "b"), RESULT, RESULT, reply("A")]
    pair = parse_pair(
        {"prompt": [USER], "chosen": chosen, "rejected": [calls("a"), RESULT, reply("B")]}
    )
    assert pair.before == ()
    assert pair.chosen == (search("a"), search("b"))
    assert pair.rejected == (search("a"),)


def test_answers_and_tools_of_a_record_are_kept() -> None:
    tools = [{"type": "function", "function": {"name": "search"}}]
    fields = {"id": "7", "golden_answers": ["A"], "tools": tools}
    pair = parse_pair(
        {"prompt": "Q?", "chosen": "<think>I see.</think>A", "rejected": "B", **fields}
    )
    assert pair.task == Task("7", "Q?", ("A",), {"tools": tools})
    assert pair.chosen == (Thought("I see."), Answer("A"))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "Q?", "chosen": "A", "rejected": "A"}, "both sides the same"),
        ({"chosen": "A", "rejected": "B"}, "0 messages of the user"),
        ({"prompt": "Q?", "chosen": 3, "rejected": "B"}, "a side that is neither"),
        (
            {"chosen": [USER, reply("A")], "rejected": [{**USER, "content": "R?"}, reply("B")]},
            "sides that answer two questions",
        ),
        (
            {"prompt": "R?", "chosen": [USER, reply("A")], "rejected": [USER, reply("B")]},
            "a side that answers another question",
        ),
        (
            {"prompt": "Q?", "chosen": [calls("a")], "rejected": [calls("a"), RESULT, reply("B")]},
            "a side that is a prefix of the other",
        ),
        ({"preferred_output": [], "non_preferred_output": []}, "no two sides of a pair"),
        ({"prompt": "Q?", "chosen": "A", "rejected": "B", "label": False}, "not to be trained"),
    ],
)
def test_what_is_no_pair_is_left_out_with_its_reason(
    record: Any, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(RecordError, match=reason):
        parse_pair(record)
    good = [{"prompt": f"{n}?", "chosen": "A", "rejected": "B"} for n in range(9)]
    path = lines(tmp_path / "pairs.jsonl", *good, record)
    pairs, left_out = read_any_pairs(path)
    assert (len(pairs), left_out.total()) == (9, 1)
    with pytest.raises(
        UserError, match=r"2 of the 11 records of .* allow it with max_left_out=0\.19"
    ):
        read_any_pairs(lines(tmp_path / "pairs.jsonl", *good, record, record))


def test_pairs_of_this_project_and_others(tmp_path: Path) -> None:
    own = ContrastivePair(Task("q", "Q?", ("A",), {}), (), (Answer("A"),), (Answer("B"),))
    write_pairs(tmp_path / "own.jsonl", [own])
    assert read_any_pairs(tmp_path / "own.jsonl") == ([own], {})
    with pytest.raises(
        UserError, match=r"holds no pairs .*, but a question: give the file as tasks"
    ):
        read_any_pairs(lines(tmp_path / "x.jsonl", {"question": "Q?", "answer": "A"}))
    with pytest.raises(UserError, match=r"holds no pairs .*: add them, or give another file"):
        read_any_pairs(lines(tmp_path / "x.jsonl", {"names": ["Ada"]}))
