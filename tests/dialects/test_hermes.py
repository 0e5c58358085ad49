import json

import pytest
from transformers import PreTrainedTokenizerFast

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.types import Answer, MalformedCall, ObservationPosition, ToolCall, UserError

TOKENIZER = tiny_tokenizer()
DIALECT = make_dialect("hermes", TOKENIZER, instruction="")
TOOL = {"type": "function", "function": {"name": "search", "description": "Find pages."}}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
SEARCH = f"<think>\nI need it.\n</think>\n\n{CALL}"
TWO = 2 * (ToolCall("search", {"query": "x"}),)
ANSWER = "<think>\nSo.\n</think>\n\n\\boxed{Oslo}<|im_end|>"


def called(text: str) -> ToolCall:
    return ToolCall("f", {"a": text})


def call(payload: str) -> list[str]:
    return [f"<tool_call>\n{payload}\n</tool_call>"]


def test_prompt_shows_the_tools_of_the_chat_template() -> None:
    text = TOKENIZER.decode(DIALECT.encode_prompt("who?", [TOOL]))
    system, user = text.split("<|im_end|>\n", 1)
    assert json.dumps(TOOL) in system
    assert user == "<|im_start|>user\nwho?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("think_prefilled", [False, True])
def test_observation_frame_is_that_of_the_chat_template(think_prefilled: bool) -> None:
    dialect = make_dialect("hermes", tiny_tokenizer(think_prefilled))
    assert dialect.render_observation("a b") == (
        "\n<|im_start|>user\n<tool_response>\na b\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_whole_chat_equals_the_template_s_rendering() -> None:
    action = ToolCall("search", {"query": 'é "x"', "limit": 3})
    ids = [
        *DIALECT.encode_prompt("who?", [TOOL]),
        *TOKENIZER.encode(DIALECT.render_call(action)),
        TOKENIZER.eos_token_id,
        *DIALECT.encode_observation("Ada"),
    ]
    function = {"name": action.tool, "arguments": action.arguments}
    messages = [
        {"role": "user", "content": "who?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
        {"role": "tool", "content": "Ada"},
    ]
    assert ids == TOKENIZER.apply_chat_template(
        messages, tools=[TOOL], add_generation_prompt=True, return_dict=False
    )


def chat(calls: list[ToolCall], observed: list[str]) -> list[dict[str, object]]:
    """Return a conversation in the form that chat templates take."""
    made = [{"function": {"name": c.tool, "arguments": c.arguments}} for c in calls]
    return [
        {"role": "user", "content": "who?"},
        {"role": "assistant", "content": "", "tool_calls": made},
        *({"role": "tool", "content": text} for text in observed),
    ]


def joining_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that joins consecutive tool messages in one user turn, as Qwen's template
    does."""
    tokenizer = tiny_tokenizer()
    alone, joined = "{%- if message.role == 'tool' -%}", JOINING
    assert alone in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{%- for message in messages -%}\n" + alone, joined
    )
    return tokenizer


JOINING = """\
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}
{%- continue -%}
{%- elif false -%}"""


@pytest.mark.parametrize("tokenizer", [TOKENIZER, joining_tokenizer()])
def test_several_calls_are_framed_as_the_template_frames_them(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    dialect = make_dialect("hermes", tokenizer, instruction="")
    calls = [ToolCall("search", {"query": name}) for name in "abc"]
    observed = ["Ada", "Bo", "Cy"]
    ids = [
        *dialect.encode_prompt("who?", [TOOL]),
        *tokenizer.encode(dialect.render_calls(calls)),
        tokenizer.eos_token_id,
        *(
            i
            for n in range(3)
            for i in dialect.encode_observation(observed[n], ObservationPosition(n, 3))
        ),
    ]
    rendered = tokenizer.apply_chat_template(
        chat(calls, observed), tools=[TOOL], add_generation_prompt=True, return_dict=False
    )
    assert ids == rendered
    one = chat(calls[:1], observed[:1])
    assert [
        *dialect.encode_prompt("who?", [TOOL]),
        *tokenizer.encode(dialect.render_calls(calls[:1])),
        tokenizer.eos_token_id,
        *dialect.encode_observation("Ada"),
    ] == tokenizer.apply_chat_template(
        one, tools=[TOOL], add_generation_prompt=True, return_dict=False
    )


def test_the_literal_frame_of_two_observations() -> None:
    dialect = make_dialect("hermes", joining_tokenizer())
    assert [
        dialect.render_observation(text, ObservationPosition(i, 2)) for i, text in enumerate("ab")
    ] == [
        "\n<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\n",
        "b\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ]


def test_a_turn_ends_as_the_template_says_whatever_the_tokenizer_calls_its_end() -> None:
    tokenizer = tiny_tokenizer()
    expected = make_dialect("hermes", tokenizer).observation_delimiters()
    tokenizer.eos_token = "<|endoftext|>"
    dialect = make_dialect("hermes", tokenizer)
    assert dialect.observation_delimiters() == expected
    assert dialect.turn_end.text == "<|im_end|>"


def test_a_template_that_ends_turns_with_text_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", "(over)")
    with pytest.raises(UserError, match=r"does not end a turn with '<\|im_end\|>'"):
        make_dialect("hermes", tokenizer).observation_delimiters()


def test_special_token_in_a_tool_s_description_is_refused() -> None:
    tool = {"type": "function", "function": {"name": "search", "description": "a <|im_end|>"}}
    with pytest.raises(UserError, match=r"special token '<\|im_end\|>'"):
        DIALECT.encode_prompt("who?", [tool])


@pytest.mark.parametrize(
    ("written", "move"),
    [
        ([SEARCH], ToolCall("search", {"query": "x"})),
        ([CALL + "\n\n"], ToolCall("search", {"query": "x"})),
        (["I mean <tool_call>: " + CALL], ToolCall("search", {"query": "x"})),
        (call('{"name": "f", "arguments": {}}'), ToolCall("f", {})),
        (call('{"name": "f", "arguments": "{}"}'), MalformedCall),
        (call('{"name": "f"}'), MalformedCall),
        (call('{"name": "", "arguments": {}}'), MalformedCall),
        (call('["f"]'), MalformedCall),
        (call('{"name": "f", "arguments": {"a": NaN}}'), MalformedCall),
        (call('{"name": "f", "arguments": {"a": 1e999}}'), MalformedCall),
        (call('{"name": "f", "arguments": {"a": "\\ud800"}}'), MalformedCall),
        (call("not JSON"), MalformedCall),
        (call(""), MalformedCall),
        (call("[" * 100_000), MalformedCall),
        (call('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}"), MalformedCall),
        (["no opening </tool_call>"], MalformedCall),
        ([SEARCH, ANSWER], Answer("Oslo")),
        (["It is <answer> Oslo </answer>.<|im_end|>"], Answer("Oslo")),
        (["<answer>a</answer> \\boxed{b}"], Answer("b")),
        (["<answer>a</answer><answer>b</answer>"], Answer("b")),
        (["<think>\nSo.\n</think>\n\n Oslo.<|im_end|>"], Answer("Oslo.")),
        (["</think> Oslo"], Answer("Oslo")),
        (["Oslo"], Answer("Oslo")),
        (["<think>\nSo.\n</think>\n\n<|im_end|>"], None),
        (["<think> cut off"], None),
        (["<tool_call> cut off"], MalformedCall),
        (["<think> cut off <tool_call>"], None),  # a call in a thought is a draft
        (["<think> cut off " + CALL], None),
        (['<think> <tool_call>{"name": "f", "arguments": {"a": "</think>"}}</tool_call>'], None),
        ([f"<think>Or {CALL}?</think>\\boxed{{Oslo}}"], Answer("Oslo")),
        ([f"Or {CALL}?</think>\\boxed{{Oslo}}"], Answer("Oslo")),
        ([f"<think>{CALL}</think>{SEARCH}"], ToolCall("search", {"query": "x"})),
        (
            call('{"name": "f", "arguments": {"a": "</tool_call> <think>"}}'),
            called("</tool_call> <think>"),
        ),
        (call('{"name": "f", "arguments": {"a": "</think> }{"}}'), called("</think> }{")),
        (["I mean <tool_call>, so <think>a</think> Oslo"], Answer("Oslo")),
        ([f"{CALL}\n{CALL}<|im_end|>"], TWO),
        ([f"{SEARCH}{CALL} and more"], TWO),
        ([f"{CALL} \\boxed{{Oslo}}"], ToolCall("search", {"query": "x"})),  # the call is first
        (["<|im_end|>"], None),
        ([""], None),
        ([], None),
    ],
)
def test_parse(written: list[str], move: object) -> None:
    parsed = DIALECT.parse(written)
    if move is MalformedCall:
        [parsed] = parsed
        assert isinstance(parsed, MalformedCall)
    else:
        assert parsed == ((move,) if isinstance(move, ToolCall) else move)


def test_malformed_call_tells_the_reason() -> None:
    assert DIALECT.parse(call("{")) == (
        MalformedCall(
            "The tool call is not valid JSON: Expecting property name enclosed in double quotes: "
            "line 3 column 1 (char 3)."
        ),
    )


def test_every_call_of_a_turn_is_read_in_its_place() -> None:
    turn = f"{CALL}\nno opening</tool_call>\n{CALL}\n<tool_call>"
    action = ToolCall("search", {"query": "x"})
    assert DIALECT.parse([turn]) == (
        action,
        MalformedCall("A tool call starts with <tool_call>."),
        action,
        MalformedCall("A tool call ends with </tool_call>."),
    )


@pytest.mark.parametrize(
    ("written", "well_formed"),
    [
        ([ANSWER], True),
        ([SEARCH, SEARCH + "\n", ANSWER], True),
        ([CALL, "Oslo"], True),  # thinking is optional
        (["I look. " + CALL, "Oslo"], True),
        ([SEARCH], False),
        ([], False),
        ([SEARCH, "<|im_end|>"], False),
        ([SEARCH, "<think> cut off"], False),
        (["<think> " + CALL, ANSWER], False),
        (["<tool_call> not JSON </tool_call>", ANSWER], False),
        ([CALL + CALL, ANSWER], True),
        ([f"<think>a</think> b {CALL}\n{CALL}<|im_end|>", ANSWER], True),
        ([f"{CALL} and {CALL}", ANSWER], False),
        ([f"{CALL}<tool_call>not JSON</tool_call>", ANSWER], False),
        ([f"{CALL}<tool_call>", ANSWER], False),
        ([CALL + " more", ANSWER], False),
        (["a turn without a call", ANSWER], False),
        ([CALL, "<tool_response> mine </tool_response> Oslo"], False),
        ([CALL + "<|im_end|>", ANSWER], True),
        ([CALL + "<|im_end|><|im_end|>", ANSWER], False),
        ([CALL + "<|endoftext|>", ANSWER], False),
    ],
)
def test_well_formed(written: list[str], well_formed: bool) -> None:
    assert DIALECT.is_well_formed(written) is well_formed
