"""A demonstration or passage that cannot be read is left out, and no other one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.config.recipe import Recipe
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.runs.file_inputs import FileData
from fieldcraft.runs.setup import load_tool
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ToolCall, UserError

CALL = {"id": "a", "function": {"name": "search", "arguments": '{"query": "x"}'}}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "found"}


def record(*between: Any) -> dict[str, Any]:
    done = {"role": "assistant", "content": "<think>So.</think>A"}
    messages = [{"role": "user", "content": "Q?"}, *between, done]
    return {"messages": messages, "golden_answers": ["A"]}


def calling(**function: str) -> dict[str, Any]:
    call = {**CALL, "function": {**CALL["function"], **function}}  # type: ignore[dict-item]
    return {"role": "assistant", "content": "I look.", "tool_calls": [call]}


STAGE = {
    "type": "sft",
    "dataset": "demonstrations",
    "batch_size": 4,
    "epochs": 1,
    "optim": {"lr": 1e-5},
}
GOOD = record(calling(), RESULT)
UNREAD = record(calling(), {**RESULT, "tool_call_id": "b"})
LEGACY = record(
    {"role": "assistant", "content": None, "function_call": CALL["function"]},
    {"role": "function", "name": "search", "content": "found"},
)
OTHER_TOOL = record(calling(name="open"), RESULT)
TWO_CALLS = record(
    {"role": "assistant", "tool_calls": [CALL, {**CALL, "id": "b"}]},
    RESULT,
    {**RESULT, "tool_call_id": "b"},
)
Steps = Sequence[DemoStep]
QUESTION = Task("q", "Q?", ("A",))
WRONG, RIGHT = [Thought("So."), Answer("B")], [Thought("So."), Answer("A")]
CALLS_OTHER_TOOL = [Thought("So."), ToolCall("open", {"x": 1}), Observation("y"), Answer("A")]
TAGGED = record(calling(arguments='{"query": "a </end_search> b"}'), RESULT)


def recipe(folder: Path, lines: list[Any], **keys: Any) -> Recipe:
    file = folder / "shown.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    others = folder / "questions.jsonl"
    others.write_text("\n".join(json.dumps({"question": f"{n}?", "answer": "A"}) for n in range(2)))
    return parse_recipe(
        {
            "name": "small",
            "model": str(folder),
            "tasks": str(others),
            "demonstrations": str(file),
            "tools": [],
            "stages": {"sft": STAGE},
            **keys,
        }
    )


def usable(folder: Path, lines: list[Any], dialect: str, **keys: Any) -> tuple[int, dict[str, int]]:
    found = FileData(recipe(folder, lines, **keys))
    loaded = make_dialect(dialect, tiny_tokenizer())
    usable_demonstrations, reasons = found.load_usable_demonstrations(DemonstrationEncoder(loaded))
    return len(usable_demonstrations), dict(reasons)


@pytest.mark.parametrize(
    ("dialect", "bad", "reason"),
    [
        ("hermes", UNREAD, "a result of an unknown call"),
        ("autocoa", OTHER_TOOL, "a call that the dialect 'autocoa' cannot write"),
        ("autocoa", TWO_CALLS, "a call that the dialect 'autocoa' cannot write"),
        ("autocoa", TAGGED, "a call that the dialect 'autocoa' does not read back"),
        ("search-r1", TWO_CALLS, "a call that the dialect 'search-r1' cannot write"),
    ],
)
def test_a_bad_demonstration_leaves_itself_out(
    tmp_path: Path, dialect: str, bad: Any, reason: str
) -> None:
    assert usable(tmp_path, [GOOD] * 9 + [bad], dialect) == (9, {reason: 1})
    with pytest.raises(
        UserError, match=r"2 of the 11 records .* allow it with max_left_out=0\.19\."
    ):
        usable(tmp_path, [GOOD] * 9 + [bad] * 2, dialect)
    agreed = usable(tmp_path, [GOOD] * 9 + [bad] * 2, dialect, max_left_out=0.19)
    assert agreed == (9, {reason: 2})


def test_all_of_them_say_what_is_wrong_with_the_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="autocoa makes one call in a turn, not 2; use the dialect"):
        usable(tmp_path, [TWO_CALLS] * 3, "autocoa", max_left_out=1)


@pytest.mark.parametrize("chains", [[WRONG], [RIGHT, CALLS_OTHER_TOOL]])
def test_the_file_of_the_filtered_data_set_is_named(tmp_path: Path, chains: list[Steps]) -> None:
    found = FileData(recipe(tmp_path, [GOOD]))
    retrieved = tmp_path / "retrieved.jsonl"
    found.dataset_files = {"retrieved": retrieved}
    encoder = DemonstrationEncoder(make_dialect("autocoa", tiny_tokenizer()))
    with pytest.raises(UserError, match=str(retrieved)) as raised:
        found.encode_filtered("retrieved", [(QUESTION, steps) for steps in chains], encoder)
    assert "shown.jsonl" not in str(raised.value)


def test_older_messages_are_demonstrations(tmp_path: Path) -> None:
    assert usable(tmp_path, [GOOD, GOOD, GOOD, LEGACY], "hermes") == (4, {})


def test_a_bad_passage_is_named_before_a_run_and_in_it(tmp_path: Path) -> None:
    corpus = tmp_path / "passages.jsonl"
    corpus.write_text('{"text": "a"}\n{"picture": "b"}\n{"text": "c"}\n')
    keys: dict[str, Any] = {"corpus": str(corpus), "tools": ["search"]}
    found = recipe(tmp_path, [GOOD], max_left_out=0.4, **keys)
    message = f"1 of {corpus} left out: no passage"
    _, notes = load_tool(found, found.tools[0], tmp_path)
    assert notes[:2] == ["2 passages", message]
    inputs, world = FileData(found), tmp_path / "world"
    world.mkdir()
    inputs.write_files(world)
    assert inputs.corpus_warnings() == [message]
    corpus_lines = (world / "corpus.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in corpus_lines]
    assert texts == ["a", "c"]
    strict = recipe(tmp_path, [GOOD], **keys)
    with pytest.raises(
        UserError, match=r"1 of the 3 records .* allow it with max_left_out=0\.34\."
    ):
        load_tool(strict, strict.tools[0], tmp_path)
