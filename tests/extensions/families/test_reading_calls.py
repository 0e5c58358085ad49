"""The dialect `auto` reads what a policy of each family writes."""

import pytest

from auto_parts import DIALECTS, EVERY, calls_of
from call_families import CALL_FAMILIES
from call_family import CALLS
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.thought_parser import StreamingThoughtParser, join_thoughts
from fieldcraft.types import (
    Answer,
    MalformedCall,
    Thought,
    ToolCall,
)

# -- what a policy writes -------------------------------------------------------------------------

MALFORMED = {
    "Qwen3-Coder": [
        "<tool_call>\n<function=search>\n<parameter=query>\nx\n</function>\n</tool_call>",
        '<tool_call>{"name": "search", "arguments": {}}</tool_call>',
        "<tool_call><function=search>",
        "</tool_call>",
    ],
    "GLM-4.5": ["<tool_call>search\n<arg_key>query</arg_key>\n</tool_call>", "<tool_call>search"],
    "Llama 3.1": [
        '{"name": "search", "parameters": {"query": ',
        '{"name": "search", "parameters": "x"}',
        "<|python_tag|>print(1)",
    ],
    "Llama 4": ["[search(query=Oslo)]", "[search(query='x', query='y')]"],
    "Mistral 7B": ['[TOOL_CALLS] [{"name": "search"}]', "[TOOL_CALLS] [", "[TOOL_CALLS] []"],
    "Magistral": ["[TOOL_CALLS]search[ARGS]{", "[TOOL_CALLS]search", "[TOOL_CALLS]a[ARGS][1]"],
    "DeepSeek V3": [
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n{}\n```",
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>search",
    ],
    "gpt-oss": [
        " to=functions.search<|channel|>commentary json<|message|>{",
        "<|channel|>commentary to=python<|message|>print(1)",
    ],
    "Gemma 4": [
        "<|tool_call>call:search{query:Oslo}<tool_call|>",
        '<|tool_call>call:search{query:<|"|>Oslo}<tool_call|>',
        "<|tool_call>search{}<tool_call|>",
        "<|tool_call>call:search{}",
    ],
    "Gemma 3": ["```tool_code\nimport os\n```", "```tool_code\n```", "```tool_code\nf(x)\n```"],
}


@pytest.mark.parametrize(
    ("name", "turn"), [(name, turn) for name, turns in MALFORMED.items() for turn in turns]
)
def test_a_malformed_call_is_none(name: str, turn: str) -> None:
    parsed = DIALECTS[name].parse([turn])
    assert isinstance(parsed, tuple)
    assert {type(call) for call in parsed} == {MalformedCall}
    assert not DIALECTS[name].is_well_formed([turn, DIALECTS[name].render_answer("x")])


@pytest.mark.parametrize(
    ("name", "turn"),
    [
        ("Llama 4", "[f(a='x')"),
        ("Llama 4", "[f(a='x'), g(b)]"),
        ("Llama 3.1", '{"name": "f", "parameters": {"a": "x"}}; {"name": "g"'),
        ("Mistral 7B", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "x"}}, {"name": "g"}]'),
        ("Gemma 3", "```tool_code\nf(a='x')\nreturn"),
    ],
)
def test_calls_before_a_malformed_one_are_run(name: str, turn: str) -> None:
    parsed = DIALECTS[name].parse([turn])
    assert isinstance(parsed, tuple)
    assert [type(call) for call in parsed] == [ToolCall, MalformedCall]
    assert parsed[0] == ToolCall("f", {"a": "x"})


@EVERY
def test_a_truncated_call_is_not_run_with_other_arguments(name: str) -> None:
    dialect, calls = DIALECTS[name], calls_of(name)
    text = dialect.render_calls(calls)
    for end in range(len(text)):
        parsed = dialect.parse([text[:end]])
        read = parsed if isinstance(parsed, tuple) else ()
        run = [call for call in read if isinstance(call, ToolCall)]
        assert run == calls[: len(run)]


@EVERY
def test_a_call_in_a_thought_is_a_draft(name: str) -> None:
    dialect, calls = DIALECTS[name], calls_of(name)
    opening, closing = dialect.layout.thought if dialect.layout else ("", "")
    draft = f"{opening}{dialect.render_calls(calls)}"
    if name.startswith("gpt-oss"):
        draft = f"{opening}I write to=functions.search and {{}}"
    assert dialect.parse([draft]) is None
    assert dialect.parse([draft + closing + dialect.render_answer("Oslo")]) == Answer("Oslo")


OTHER_WAYS = [
    (
        "Llama 3.1",
        '<|python_tag|>search.call(query="x")<|eom_id|>',
        ToolCall("search", {"query": "x"}),
    ),
    (
        "Llama 3.1",
        '{"type": "function", "name": "f", "parameters": {}}<|eot_id|>',
        ToolCall("f", {}),
    ),
    (
        "Llama 4",
        "[f(a='it\\'s', b=[1, None], c={'k': True})]<|eot|>",
        ToolCall("f", {"a": "it's", "b": [1, None], "c": {"k": True}}),
    ),
    ("Magistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}]</s>', ToolCall("f", {})),
    ("Mistral 7B", "[TOOL_CALLS]f[ARGS]{}</s>", ToolCall("f", {})),
    ("Magistral", 'I look.[TOOL_CALLS]f{"a": 1}</s>', ToolCall("f", {"a": 1})),
    (
        "gpt-oss",
        "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary"
        ' to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        ToolCall("f", {"a": 1}),
    ),
    (
        "DeepSeek V3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        ToolCall("f", {}),
    ),
]


@pytest.mark.parametrize(("name", "turn", "call"), OTHER_WAYS)
def test_other_ways_of_a_family_are_read(name: str, turn: str, call: ToolCall) -> None:
    assert DIALECTS[name].parse([turn]) == (call,)


ANSWERS = [
    ("Llama 3.1", '{"name": "Ada"}', '{"name": "Ada"}'),
    ("Llama 3.1", 'See {"name": "f", "parameters": {}}', 'See {"name": "f", "parameters": {}}'),
    ("Llama 4", "[1, 2]", "[1, 2]"),
    ("Llama 4", "[sin(x), 2]", "[sin(x), 2]"),
    ("gpt-oss", "<|channel|>final<|message|>Oslo<|return|>", "Oslo"),
    ("GLM-4.5", "\n<think></think>\nOslo<|user|>", "Oslo"),
    ("Gemma 4", "<|channel>thought\nx\n<channel|>It is \\boxed{Oslo}<turn|>", "Oslo"),
]


@pytest.mark.parametrize(("name", "turn", "answer"), ANSWERS)
def test_answers_are_read(name: str, turn: str, answer: str) -> None:
    assert DIALECTS[name].parse([turn]) == Answer(answer)


@pytest.mark.parametrize(
    "turn", ["", "Oslo", "<|channel|>analysis<|message|>Oslo", "<|channel|>final"]
)
def test_text_outside_of_the_final_channel_is_no_answer(turn: str) -> None:
    assert DIALECTS["gpt-oss"].parse([turn]) is None


@EVERY
def test_a_forced_answer_closes_what_is_open(name: str) -> None:
    dialect = DIALECTS[name]
    opening = dialect.layout.thought[0] if dialect.layout else ""
    for start in ("", f"{opening}So it", dialect.render_thought("So.")):
        turn = start + dialect.render_answer_opening(start) + "Oslo}"
        assert dialect.parse([turn]) == Answer("Oslo")
    assert dialect.is_well_formed([dialect.render_answer_opening("") + "Oslo}"])


def test_a_token_after_calls_that_generation_misses_is_a_stop_string() -> None:
    family = CALL_FAMILIES["gpt-oss"]
    tokenizer = family.tokenizer()
    [end] = tokenizer.encode("<|return|>", add_special_tokens=False)
    dialect = make_dialect("auto", tokenizer, "", eos_ids=(end,))
    assert dialect.stop_strings == ("<|call|>",)
    assert DIALECTS["gpt-oss"].stop_strings == ()
    assert DIALECTS["FunctionGemma"].stop_strings == ("<start_function_response>",)
    for each in (dialect, DIALECTS["gpt-oss"]):
        turn = each.tokenizer.decode(each.encode_turn(each.render_calls(CALLS[:1])))
        assert turn.endswith("<|call|>")
        assert each.parse([turn]) == CALLS[:1]


@EVERY
def test_a_thought_is_shown_while_it_is_written(name: str) -> None:
    dialect = DIALECTS[name]
    parser = StreamingThoughtParser(dialect)
    turn = dialect.render_thought("Hm. So") + dialect.render_calls(calls_of(name))
    thoughts = set()
    for end in range(len(turn)):
        text = parser.get_stable_prefix(turn[:end])
        thoughts.add(join_thoughts(parser.parse(text, in_thought=False)))
    assert all("Hm. So".startswith(thought) for thought in thoughts)
    assert "Hm. So" in thoughts
    assert parser.parse(turn, in_thought=False) == [Thought("Hm. So")]
