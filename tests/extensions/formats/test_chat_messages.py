"""Messages in users' files: conversion to steps, and reasons for leaving out the others."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fieldcraft.data.file_formats import read_any_demonstrations
from fieldcraft.data.records import RecordError
from fieldcraft.extensions.formats.chat_messages import parse_chat, render_messages
from fieldcraft.extensions.formats.demonstration_formats import FORMATS, detect_format
from fieldcraft.extensions.formats.values import VERDICT_KEYS
from fieldcraft.types import Answer, DemoStep, Observation, Thought, ToolCall, UserError

USER = {"role": "user", "content": "Q?"}
DRAFT = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
DONE = {"role": "assistant", "content": "A"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


def called(*ids: str, names: str = "") -> dict[str, Any]:
    calls = [
        {"id": i, "function": {"name": name or "search", "arguments": json.dumps({"q": i})}}
        for i, name in zip(ids, names or [""] * len(ids), strict=True)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(identity: str | None, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def steps(*messages: Any) -> list[DemoStep]:
    return parse_chat([USER, *messages, DONE]).steps


@given(st.permutations(["a", "b", "c"]), st.booleans())
def test_results_are_those_of_the_calls_that_they_name(order: list[str], apart: bool) -> None:
    made = [called(i) for i in "abc"] if apart else [called(*"abc")]
    found = steps(*made, *(result(i, f"of {i}") for i in order))
    assert found[:3] == [ToolCall("search", {"q": i}) for i in "abc"]
    assert found[3:] == [*(Observation(f"of {i}") for i in "abc"), Answer("A")]


@given(st.permutations([0, 1, 2]))
def test_what_is_written_is_read_in_any_order_of_its_results(order: list[int]) -> None:
    expected: list[DemoStep] = [*(ToolCall("f", {"n": n}) for n in range(3))]
    expected += [*(Observation(str(n)) for n in range(3)), Answer("x")]
    call, *results, last = render_messages(expected)
    assert parse_chat([USER, call, *(results[n] for n in order), last]).steps == expected


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([called("a", "b"), result("a", "x"), result("c", "y")], "a result of an unknown call"),
        ([called("a", "b"), result("a", "x"), result("a", "y")], "two results of one call"),
        ([called("a", "b"), result("a", "x")], "a call without a result"),
        ([called("a")], "a call without a result"),
        ([called("a"), result(None, "x")], "a result without the id of its call"),
        ([called(""), result("a", "x")], "a call without an id"),
        ([called("", ""), result("", "x")], "a different number of results than calls"),
        ([result("a", "x")], "a result without a call"),
        ([called("a"), result("a", "x"), result("a", "x")], "two results of one call"),
        ([called("a"), result("a", None)], "a result without a content"),
        ([called("a"), result("a", [{"type": "image_url", "image_url": "x"}])], "not text"),
        ([{"role": "assistant", "content": {"a": 1}}], "a message without a text"),
        ([{"role": "assistant", "content": " "}], "an empty message"),
        ([{"role": "assistant", "content": "B"}], "two messages of the assistant in a row"),
        ([{"role": "assistant", "content": "<think>t</think>B"}], "two messages of the assistant"),
        ([{"role": "assistant", "content": "x", "reasoning": {"a": 1}}], "without a text"),
        ([{"role": "assistant", "content": "<think> I"}], "a thought that never ends"),
        ([{"role": "assistant", "tool_calls": "x"}], "calls that are not a list"),
        ([{**called("a"), "function_call": {"name": "f", "arguments": "{}"}}], "both"),
        ([{"role": "assistant", "function_call": "f"}], "a call that cannot be read"),
        ([{"role": "assistant", "content": None, "refusal": "No."}], "more than its text"),
        (
            [
                {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "g", "content": "x"},
            ],
            "not in the order of the calls",
        ),
    ],
)
def test_what_is_not_understood_has_its_reason(messages: list[Any], reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        steps(*messages)


def test_messages_in_a_row_are_one_turn_where_one_of_them_calls() -> None:
    message = {"role": "assistant", "content": "I look."}
    found = steps(message, called("a"), called("b"), result("a", "x"), result("b", "y"))
    calls = [ToolCall("search", {"q": i}) for i in "ab"]
    assert found == [Thought("I look."), *calls, Observation("x"), Observation("y"), Answer("A")]
    thought = {"role": "assistant", "content": "<think>t</think>"}
    assert steps(thought) == [Thought("t"), Answer("A")]


def test_turns_of_sharegpt_in_a_row_are_left_out_with_their_reason() -> None:
    turns = [("human", "Q?"), ("gpt", "A"), ("gpt", "B")]
    record = {"conversations": [{"from": who, "value": text} for who, text in turns]}
    found = detect_format(record)
    assert found is not None
    with pytest.raises(RecordError, match="two messages of the assistant in a row"):
        found.to_demonstration(record)


@given(
    st.sampled_from(["think", "thinking", "thought", "reasoning"]),
    st.text(st.sampled_from("ab <>/\n"), max_size=9),
    st.sampled_from(["", "\n", " \n\n"]),
)
def test_a_thought_between_tags_of_any_name_stands_before_the_answer(
    tag: str, text: str, gap: str
) -> None:
    content = f"<{tag}>{gap}So {text}.{gap}</{tag}>{gap}A"
    found = parse_chat([USER, {"role": "assistant", "content": content}]).steps
    assert found == [Thought(f"So {text}."), Answer("A")]


def test_tags_within_an_answer_are_text() -> None:
    for text in ("Write <thinking>x</thinking>A", "<thinking>A", "<b>x</b>A"):
        [only] = parse_chat([USER, {"role": "assistant", "content": text}]).steps
        assert only == Answer(text)
    drafted = f"<thinking>Or {DRAFT}?</thinking>"
    call = {"role": "assistant", "content": f"{drafted}\n{DRAFT.replace('f', 'g')}"}
    assert steps(call, result(None, "x"))[:2] == [Thought(f"Or {DRAFT}?"), ToolCall("g", {})]


def test_a_question_alone_is_no_demonstration() -> None:
    with pytest.raises(RecordError, match="without a turn of the assistant"):
        parse_chat([USER])


def test_older_messages_with_one_call_are_read() -> None:
    made = {"name": "search", "arguments": '{"query": "x"}'}
    found = steps(
        {"role": "assistant", "content": "Look.", "function_call": made, "tool_calls": None},
        {"role": "function", "name": "search", "content": "found x"},
    )
    call = ToolCall("search", {"query": "x"})
    assert found == [Thought("Look."), call, Observation("found x"), Answer("A")]


@given(JSON.filter(lambda value: value is not None))
def test_a_result_of_any_kind_is_its_text_or_its_json(value: Any) -> None:
    found = steps(called("a"), result("a", value))[1]
    assert isinstance(found, Observation)
    assert (found.text if isinstance(value, str) else json.loads(found.text)) == value


def test_a_result_in_parts_is_their_text() -> None:
    parts = [{"type": "text", "text": "12"}, {"type": "text", "text": ":00", "image_url": None}]
    assert steps(called("a"), result("a", parts))[1] == Observation("12:00")


def test_a_call_may_be_without_a_function_around_it() -> None:
    made = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]}
    found = steps(made, {"role": "tool", "content": "x"})
    assert found[:2] == [ToolCall("f", {"a": 1}), Observation("x")]


def test_no_arguments_may_be_an_empty_text() -> None:
    call = {"id": "a", "function": {"name": "now", "arguments": ""}}
    made = {"role": "assistant", "tool_calls": [call]}
    assert steps(made, result("a", "12:00"))[0] == ToolCall("now", {})


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (f"<think>Or {DRAFT}?</think>A", [Thought(f"Or {DRAFT}?"), Answer("A")]),
        (f"Or {DRAFT}?</think>A", [Thought(f"Or {DRAFT}?"), Answer("A")]),
        ("<think>a</think>b</think>A", [Thought("a"), Thought("b"), Answer("A")]),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call></think>"}}</tool_call>',
            [ToolCall("f", {"a": "</tool_call></think>"})],
        ),
    ],
)
def test_drafts_and_strings_are_no_calls(text: str, last: list[DemoStep]) -> None:
    assert parse_chat([USER, {"role": "assistant", "content": text}]).steps == last


# -- keys with a meaning -----------------------------------------------------------------------

UNLEARNED = [
    *({"weight": 0}, {"weight": 0.5}, {"train": False}, {"loss": False}, {"loss": 0}),
    *({"training": "false"}, {"trainable": False}, {"loss_mask": 0}, {"mask": True}, {"masked": 1}),
    *({"train_detail": [{"begin_offset": 0, "end_offset": 3, "train": False}]}, {"loss_scale": 0}),
]
LEARNED = [{}, {"weight": 1}, {"train": True}, {"loss": None}, {"mask": False}, {"weight": 1.0}]


def records(turn: dict[str, Any]) -> list[dict[str, Any]]:
    message = {**DONE, **turn}
    share = [{"from": "human", "value": "Q?"}, {"from": "gpt", "value": "A", **turn}]
    return [
        {"messages": [USER, message]},
        {"prompt": [USER], "completion": [message]},
        {"conversations": share},
    ]


@pytest.mark.parametrize("turn", UNLEARNED)
def test_a_turn_that_is_not_to_be_trained_leaves_its_record_out(turn: dict[str, Any]) -> None:
    for record in records(turn):
        found = detect_format(record)
        assert found is not None
        with pytest.raises(RecordError, match=f"by its key '{next(iter(turn))}'"):
            found.to_demonstration(record)


@pytest.mark.parametrize("turn", LEARNED)
def test_a_turn_that_is_to_be_trained_is_read(turn: dict[str, Any]) -> None:
    for record in records(turn):
        found = detect_format(record)
        assert found is not None
        assert found.to_demonstration(record)[1] == [Answer("A")]
        assert found.to_demonstration({**record, "label": True, "weight": 1})[1] == [Answer("A")]


@pytest.mark.parametrize("key", VERDICT_KEYS)
def test_a_record_of_how_not_to_answer_is_left_out(key: str) -> None:
    for record in records({}):
        found = detect_format(record)
        assert found is not None
        for value in (False, 0, "FALSE", "0"):  # cells of tables are texts
            with pytest.raises(RecordError, match=f"by its key '{key}'"):
                found.to_demonstration({**record, key: value})


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"golden_answers": [{"a": 1}]}, "an answer that is not text"),
        ({"question": 3}, "a 'question' of another kind"),
        ({"metadata": [1]}, "a 'metadata' of another kind"),
        ({"tools": "["}, "a field that is not JSON"),
    ],
)
def test_a_field_of_another_kind_is_no_empty_one(field: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        FORMATS["openai"].to_demonstration({"messages": [USER, DONE], **field})


@pytest.mark.parametrize(
    "named",
    [
        {"answer": "A"},
        {"answers": ["A", "a one"]},
        {"possible_answers": '["A"]'},
        {"answer": {"value": "A", "aliases": []}},
        {"reward_model": {"style": "rule", "ground_truth": "A"}},
        {"solution": "So it is \\boxed{A}."},
    ],
    ids=lambda named: next(iter(named)),
)
def test_a_demonstration_names_its_gold_answers_as_a_question_does(named: dict[str, Any]) -> None:
    for record in records({}):
        found = detect_format({**record, **named})
        assert found is not None
        assert found.to_demonstration({**record, **named})[0].answers[0] == "A"


def test_one_accepted_answer_needs_no_list() -> None:
    task, _ = FORMATS["openai"].to_demonstration(
        {"messages": [USER, DONE], "golden_answers": "007"}
    )
    assert task.answers == ("007",)


def test_a_turn_of_sharegpt_that_is_an_object() -> None:
    turns = [
        {"from": "human", "value": "Q?"},
        {"from": "function_call", "value": '{"name": "now", "arguments": {}}'},
        {"from": "observation", "value": {"time": "12:00"}},
        {"from": "gpt", "value": "A"},
    ]
    found = FORMATS["sharegpt"].to_demonstration({"conversations": turns})[1]
    assert found[1] == Observation('{"time": "12:00"}')
    turns[-1] = {"from": "gpt", "value": {"a": 1}}
    with pytest.raises(RecordError, match="a turn without a text"):
        FORMATS["sharegpt"].to_demonstration({"conversations": turns})


@given(st.permutations(["a", "b"]), st.booleans())
def test_ids_in_sharegpt_decide(order: list[str], apart: bool) -> None:
    calls = [{"id": i, "name": "f", "arguments": {"q": i}} for i in "ab"]
    messages = [{"tool_call_id": i, "content": f"of {i}"} for i in order]
    results = [
        {"from": "tool", "tool_call_id": one["tool_call_id"], "value": one["content"]}
        for one in messages
    ]
    turns = [
        {"from": "human", "value": "Q?"},
        {"from": "function_call", "value": json.dumps(calls)},
        *(results if apart else [{"from": "observation", "value": json.dumps(messages)}]),
        {"from": "gpt", "value": "A"},
    ]
    found = FORMATS["sharegpt"].to_demonstration({"conversations": turns})[1]
    assert found[2:4] == [Observation("of a"), Observation("of b")]
    without = {"from": "observation", "value": json.dumps(["x", "y"])}
    with pytest.raises(RecordError, match="a result without the id of its call"):
        FORMATS["sharegpt"].to_demonstration({"conversations": [*turns[:2], without, turns[-1]]})


def test_tags_in_the_json_of_sharegpt_are_text() -> None:
    query = {"name": "f", "arguments": {"q": "</think> <tool_call>"}}
    for before in ("", "<think>\nHm.\n</think>\n\n"):
        turns = [
            {"from": "human", "value": "Q?"},
            {"from": "function_call", "value": before + json.dumps(query)},
            {"from": "observation", "value": "x"},
            {"from": "gpt", "value": "A"},
        ]
        found = FORMATS["sharegpt"].to_demonstration({"conversations": turns})[1]
        assert ToolCall("f", {"q": "</think> <tool_call>"}) in found
        assert found[-3:] == [ToolCall("f", query["arguments"]), Observation("x"), Answer("A")]


def test_functions_of_older_files_are_tools() -> None:
    record = {"messages": [USER, DONE], "functions": [{"name": "f"}]}
    task, _ = FORMATS["openai"].to_demonstration(record)
    assert task.meta["tools"] == [{"type": "function", "function": {"name": "f"}}]


def test_steps_in_an_impossible_order_leave_one_record_out(tmp_path: Path) -> None:
    good = {"messages": [USER, DONE]}
    results = (result("a", "x"), result("b", "y"))
    broken = [USER, called("a"), {**called("b"), "content": "Hm."}, *results, DONE]
    file = tmp_path / "chats.jsonl"
    lines = [json.dumps(record) for record in (good, {"messages": broken}, good)]
    file.write_text("\n".join(lines))
    demonstrations, reasons = read_any_demonstrations(file, 0.34)
    assert (len(demonstrations), reasons) == (2, Counter({"steps in an impossible order": 1}))


@given(st.integers(1, 30), st.integers(0, 30), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@example(21, 29, 0.0)  # 0.58 * 50 < 29
def test_more_than_the_agreed_share_stops_with_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, good: int, bad: int, most: float
) -> None:
    """The message names the reasons, the first record, and the key that permits the share."""
    file = tmp_path_factory.mktemp("left") / "chats.jsonl"
    lines = [{"messages": [USER, DONE]}] * good + [{"messages": [USER]}] * bad
    file.write_text("\n".join(map(json.dumps, lines)))
    if bad <= most * len(lines):
        demonstrations, reasons = read_any_demonstrations(file, most)
        assert (len(demonstrations), reasons.total()) == (good, bad)
        return
    message = (
        rf"{bad} of the {good + bad} records .*{bad} with a question without .*, line {good + 1}"
    )
    with pytest.raises(UserError, match=message) as error:
        read_any_demonstrations(file, most)
    agreed = float(str(error.value).rpartition("max_left_out=")[2].rstrip("."))
    assert len(read_any_demonstrations(file, agreed)[0]) == good
