"""Demonstrations in other projects' formats: round trips, and content that has no place in them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fieldcraft.data.file_formats import TaskAndSteps, read_any_demonstrations
from fieldcraft.data.records import RecordError
from fieldcraft.data.steps_io import write_demonstrations
from fieldcraft.data.tasks import read_tasks, write_verl
from fieldcraft.extensions.formats.chat_messages import (
    parse_chat,
    render_messages,
    strip_whitespace,
)
from fieldcraft.extensions.formats.convert import convert, convert_demonstrations
from fieldcraft.extensions.formats.demonstration_formats import FORMATS
from fieldcraft.rewards.answers import strip_invisible
from fieldcraft.types import (
    Answer,
    DemoStep,
    Observation,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
    UserError,
)

CHATS = [name for name in FORMATS if name != "afm"]
# Fragments of tags are likely, so that text with a special meaning is covered.
TEXT = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "{", '"a"', "\\boxed{x}", "ü", "\n", " x"]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    max_size=5,
).map("".join)
VALUES = st.recursive(
    st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["query", "code", "k"]), VALUES, max_size=3)
ROLES = st.sampled_from([role for role in ThoughtRole if role is not ThoughtRole.SUMMARY])


@st.composite
def demonstrations(draw: st.DrawFn) -> TaskAndSteps:
    """Draw turns of thoughts and calls, then an answer."""
    steps: list[DemoStep] = []
    for _ in range(draw(st.integers(0, 3))):
        steps += [Thought(draw(TEXT), draw(ROLES)) for _ in range(draw(st.integers(0, 2)))]
        calls = draw(st.integers(1, 2))
        steps += [
            ToolCall(draw(st.sampled_from(["search", "python"])), draw(ARGUMENTS))
            for _ in range(calls)
        ]
        steps += [Observation(draw(TEXT)) for _ in range(calls)]
    steps += [Thought(draw(TEXT), draw(ROLES)) for _ in range(draw(st.integers(0, 2)))]
    question = draw(TEXT.filter(str.strip)).strip()
    gold = draw(TEXT.filter(lambda text: strip_invisible(text).strip())).strip()
    task = Task("q1", question, (gold,), {"hops": 2})  # readers drop invisible gold answers
    return task, [*steps, Answer(draw(TEXT.filter(str.strip)))]


@given(demonstrations())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize("name", list(FORMATS))
def test_what_is_written_is_read_back(name: str, demonstration: TaskAndSteps) -> None:
    """Every record has exactly the content of its demonstration; content without a place is not
    written."""
    task, steps = demonstration
    written, reasons = convert_demonstrations([demonstration], FORMATS[name])
    assert len(written) + reasons.total() == 1
    for record in written:
        record = json.loads(json.dumps(record))
        read, again = FORMATS[name].to_demonstration(record)
        assert again == strip_whitespace(steps)
        assert (read.id, read.question, read.answers) == (task.id, task.question, task.answers)
        assert read.meta["hops"] == 2


PLAIN = st.text(
    st.characters(categories=["Lu", "Ll", "Nd", "Po"], exclude_characters="\\"), min_size=1
)


@given(PLAIN, PLAIN, PLAIN)
@settings(max_examples=25)
@pytest.mark.parametrize("name", list(FORMATS))
def test_ordinary_text_has_a_place_in_every_format(name: str, a: str, b: str, c: str) -> None:
    steps = [
        Thought(a, ThoughtRole.PLAN),
        Thought(b),
        ToolCall("search", {"query": c}),
        Observation(a),
        Thought(c),
        Answer(b),
    ]
    _, reasons = convert_demonstrations([(Task("1", f"{a} {b}", (b,)), steps)], FORMATS[name])
    assert reasons == Counter()


SHOWN: list[TaskAndSteps] = [
    (
        Task("a", "Who directed it?", ("Bo Berg",), {"hops": 2, "tags": ["x"]}),
        [
            Thought("First the film.", ThoughtRole.PLAN),
            ToolCall("search", {"query": "the film"}),
            ToolCall("search", {"query": "its director", "k": 3}),
            Observation("A film."),
            Observation("Bo Berg."),
            Thought("It is he."),
            Answer("Bo Berg"),
        ],
    ),
    (
        Task("b", "What is 6 times 7?", ("42", "forty-two")),
        [ToolCall("python", {"code": "print(6 * 7)"}), Observation("42\n"), Answer("42")],
    ),
]


def without_tools(demonstrations: list[TaskAndSteps]) -> list[TaskAndSteps]:
    """Return the demonstrations without the inferred tools."""
    for task, _ in demonstrations:
        assert {tool["function"]["name"] for tool in task.meta.pop("tools")} == {"search", "python"}
    return demonstrations


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("ending", [".jsonl", ".json", ".parquet", ""])
def test_files_and_folders_there_and_back(tmp_path: Path, name: str, ending: str) -> None:
    if not ending:
        pytest.importorskip("datasets")
    ours, again = tmp_path / "ours.jsonl", tmp_path / "again.jsonl"
    theirs = tmp_path / f"theirs{ending}"
    write_demonstrations(ours, SHOWN)
    assert convert(ours, name, theirs) == (2, Counter())
    assert convert(theirs, "steps", again) == (2, Counter())
    read, reasons = read_any_demonstrations(again)
    assert (without_tools(read), reasons) == (SHOWN, Counter())
    assert [task.question for task in read_tasks(theirs)] == [task.question for task, _ in SHOWN]


def test_the_messages_of_openai_and_of_trl() -> None:
    """The expected records are literal, so that a change of the written format is noticed."""
    search = {"type": "object", "properties": {"query": {"type": "string"}}}
    tools = [
        {
            "type": "function",
            "function": {"name": "search", "description": "", "parameters": search},
        }
    ]
    task = Task("1", "Who?", ("Bo",), {"system": "Be brief."})
    steps = [Thought("Hm."), ToolCall("search", {"query": "who"}), Observation("Bo."), Answer("Bo")]
    call = {"id": "call_0", "type": "function"}
    arguments: Any = {"query": "who"}
    expected = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {
            "role": "assistant",
            "content": "<think>\nHm.\n</think>",
            "tool_calls": [{**call, "function": {"name": "search", "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": "call_0", "name": "search", "content": "Bo."},
        {"role": "assistant", "content": "Bo"},
    ]
    fields = {"id": "1", "question": "Who?", "golden_answers": ["Bo"]}
    (trl,), _ = convert_demonstrations([(task, steps)], FORMATS["trl"])
    assert trl == {"messages": expected, "tools": tools, **fields}
    (parts,), _ = convert_demonstrations([(task, steps)], FORMATS["trl-prompt"])
    assert (parts["prompt"], parts["completion"]) == (expected[:2], expected[2:])
    expected[2]["tool_calls"][0]["function"]["arguments"] = '{"query": "who"}'  # type: ignore[index]
    (openai,), _ = convert_demonstrations([(task, steps)], FORMATS["openai"])
    assert openai["messages"] == expected
    (share,), _ = convert_demonstrations([(task, steps)], FORMATS["sharegpt"])
    assert share == {
        "conversations": [
            {"from": "human", "value": "Who?"},
            {
                "from": "function_call",
                "value": "<think>\nHm.\n</think>\n\n"
                '{"name": "search", "arguments": {"query": "who"}}',
            },
            {"from": "observation", "value": "Bo."},
            {"from": "gpt", "value": "Bo"},
        ],
        "system": "Be brief.",
        "tools": json.dumps(tools),
        **fields,
    }


CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("messages", "steps"),
    [
        (  # calls in tags, several responses in one message
            [
                {"role": "assistant", "content": f"Look.\n{CALL}\n{CALL}"},
                {
                    "role": "tool",
                    "content": "<tool_response>\n1\n</tool_response>"
                    "<tool_response>2</tool_response>",
                },
                {"role": "assistant", "content": "So it is\n\\boxed{12}."},
            ],
            [
                Thought("Look."),
                *2 * [ToolCall("search", {"query": "x"})],
                *(Observation("1"), Observation("2")),
                *(Thought("So it is"), Answer("12")),
            ],
        ),
        (  # thoughts in a field, text in parts
            [
                {
                    "role": "assistant",
                    "reasoning_content": "Hm.",
                    "content": [{"type": "text", "text": "<answer> 3 </answer>"}],
                }
            ],
            [Thought("Hm."), Answer("3")],
        ),
        ([{"role": "assistant", "content": "Hm.\n</think>\n\n3"}], [Thought("Hm."), Answer("3")]),
        (
            [{"role": "assistant", "thought": "Hm.", "content": "3"}],
            [Thought("Hm."), Answer("3")],
        ),
        (
            [
                {
                    "role": "assistant",
                    "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}],
                    "content": "3",
                }
            ],
            [Thought("Hm."), Answer("3")],
        ),
    ],
)
def test_other_ways_to_write_messages(messages: list[Any], steps: list[DemoStep]) -> None:
    assert parse_chat([{"role": "user", "content": "Q"}, *messages]).steps == steps


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("no messages", "no list of messages"),
        ([], "0 messages of the user"),
        (2 * [{"role": "user", "content": "Q"}], "2 messages of the user"),
        ([{"role": "user", "content": " "}], "an empty question"),
        ([{"role": "assistant"}, {"role": "user", "content": "Q"}], "another role before"),
        ([{"role": "user", "content": "Q"}, {"role": "critic"}], "a message of the role critic"),
        (
            [
                {"role": "user", "content": "Q"},
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "x", "arguments": "{"}}],
                },
            ],
            "a call that cannot be read",
        ),
        (
            [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<tool_call>{"}],
            "a call that cannot be read",
        ),
    ],
)
def test_what_cannot_be_read_has_a_reason(messages: Any, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        parse_chat(messages)


def test_bad_records_are_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    file, out = tmp_path / "chats.jsonl", tmp_path / "out.jsonl"
    good = {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}
    bad = [{"messages": 3}, {"other": 1}, {"messages": [], "tools": "["}]
    file.write_text("".join(json.dumps(record) + "\n" for record in [good, *bad, good]))
    with pytest.raises(UserError, match=r"3 of the 5 records .* allow it with max_left_out=0\.6\."):
        convert(file, "sharegpt", out)
    count, reasons = convert(file, "sharegpt", out, max_left_out=0.6)
    assert (count, reasons) == (2, Counter({"no list of messages": 2, "0 messages of the user": 1}))
    assert [steps for _, steps in read_any_demonstrations(out)[0]] == [[Answer("A")]] * 2


def test_an_observation_without_a_call_has_no_place() -> None:
    with pytest.raises(RecordError, match="without a call"):
        render_messages([Observation("x"), Answer("y")])


# -- verl and AFM ------------------------------------------------------------------------------


def test_tasks_of_verl_there_and_back(tmp_path: Path) -> None:
    tasks = [
        Task("1", "When: then?", ("1990", "in 1990"), {"hops": 2, "deep": {"a": [1]}}),
        Task("2", "When: now?", ("2000",), {"data_source": "nq", "split": "train"}),
    ]
    write_verl(tasks, tmp_path / "verl.parquet", "Answer: ")
    assert read_tasks(tmp_path / "verl.parquet") == tasks
    assert convert(tmp_path / "verl.parquet", "questions", tmp_path / "q.jsonl")[0] == 2
    assert convert(tmp_path / "q.jsonl", "verl", tmp_path / "again.parquet")[0] == 2
    assert read_tasks(tmp_path / "again.parquet") == tasks


# -- user errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "out", "sentence"),
    [
        ("sharegtp", "x.jsonl", "did you mean 'sharegpt'"),
        ("verl", "x.jsonl", "written as .parquet"),
        ("steps", "x.parquet", "written as .jsonl"),
        ("openai", "x.csv", "use .jsonl, .json, .parquet"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, to: str, out: str, sentence: str) -> None:
    write_demonstrations(tmp_path / "in.jsonl", SHOWN)
    with pytest.raises(UserError, match=sentence):
        convert(tmp_path / "in.jsonl", to, tmp_path / out)


def test_a_file_without_anything_to_read_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"messages": []}\n')
    with pytest.raises(UserError, match=r"line 1: it holds 0 messages of the user: correct"):
        convert(tmp_path / "in.jsonl", "trl", tmp_path / "out.jsonl")


@pytest.mark.parametrize("to", ["autocoa", "afm"])
def test_nothing_is_written_if_the_format_can_hold_no_demonstration(
    tmp_path: Path, to: str
) -> None:
    steps = [ToolCall("lookup", {"name": "Ada"}), Observation("1815"), Answer("1815")]
    write_demonstrations(tmp_path / "in.jsonl", [(Task("1", "When?", ("1815",)), steps)])
    with pytest.raises(UserError, match=f"can be written as {to} "):
        convert(tmp_path / "in.jsonl", to, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
