import pytest

from checkpoints import r1_tokenizer, tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.types import Answer, MalformedCall, ToolCall, UserError

DIALECT = make_dialect("autocoa", tiny_tokenizer(), instruction="")
SEARCH = "I need it.\n<begin_search> capital of Norway </end_search>"
ANSWER = "So.\n</think>\n\n\\boxed{Oslo}<|im_end|>"


@pytest.mark.parametrize("think_prefilled", [False, True])
def test_prompt_ends_in_one_open_think(think_prefilled: bool) -> None:
    tokenizer = tiny_tokenizer(think_prefilled)
    prompt = make_dialect("autocoa", tokenizer, instruction="").encode_prompt(" who? ", [])
    assert tokenizer.decode(prompt) == (
        "<|im_start|>user\nwho?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


@pytest.mark.parametrize("think_prefilled", [False, True])
def test_prompt_of_a_distilled_r1(think_prefilled: bool) -> None:
    """Both revisions of its chat template: each tag of the prompt is there once, as one token."""
    tokenizer = r1_tokenizer(think_prefilled)
    prompt = make_dialect("autocoa", tokenizer, instruction="").encode_prompt("a<think>", [])
    tokens = tokenizer.convert_ids_to_tokens(prompt)
    assert tokens[:3] == ["<｜begin▁of▁sentence｜>", "<｜User｜>", "a"]
    assert tokens[-3:] == ["<｜Assistant｜>", "<think>", "Ċ"]
    # the contents of a question are text
    assert tokenizer.decode(prompt[3:-3]) == "<think>"
    assert tokens.count("<think>") == 1


def test_own_instruction_names_every_tag_and_precedes_the_question() -> None:
    tokenizer = tiny_tokenizer()
    text = tokenizer.decode(make_dialect("autocoa", tokenizer).encode_prompt("who?", []))
    assert text.endswith("question:\n\nwho?<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert all(tag in text for tag in DIALECT.tags)
    assert r"\boxed{" in text


@pytest.mark.parametrize(
    ("written", "move"),
    [
        ([SEARCH], ToolCall("search", {"query": "capital of Norway"})),
        (["<begin_search>x</end_search>"], ToolCall("search", {"query": "x"})),
        # The last sampled token may be longer than the stop string.
        ([SEARCH + "\n\n"], ToolCall("search", {"query": "capital of Norway"})),
        ([SEARCH, SEARCH], ToolCall("search", {"query": "capital of Norway"})),
        (["<begin_search> or <begin_search> x </end_search>"], ToolCall("search", {"query": "x"})),
        (["<begin_search> </end_search>"], MalformedCall),
        (["no opening </end_search>"], MalformedCall),
        ([SEARCH, ANSWER], Answer("Oslo")),
        ([ANSWER], Answer("Oslo")),
        (["a </think> \\boxed{x} no: \\boxed{\\frac{1}{2}}"], Answer("\\frac{1}{2}")),
        (["\\boxed{x}"], None),  # not after </think>
        (["\\boxed{x} </think> nothing"], None),
        (["a </think> nothing"], None),
        (["unfinished <begin_search> x"], None),
        # No search after thinking has ended, in this turn or in an earlier one.
        (["a </think> <begin_search> x </end_search>"], None),
        (["a </think> \\boxed{y} <begin_search> x </end_search>"], Answer("y")),
        (["a </think> <begin_search> x </end_search>", SEARCH], None),
        # Two halves of a tag in two turns do not form a tag.
        (["a </thi", "nk> \\boxed{x}"], None),
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


@pytest.mark.parametrize(
    ("written", "well_formed"),
    [
        ([ANSWER], True),
        ([SEARCH, ANSWER], True),
        ([SEARCH + "\n\n", SEARCH, ANSWER], True),
        (["</think> \\boxed{x} is it"], True),
        ([SEARCH, SEARCH], False),
        ([SEARCH], False),
        ([], False),
        (["So.\n</think>\n\nOslo"], False),  # no box
        (["So \\boxed{Oslo}</think>"], False),
        (["a <think> b </think> \\boxed{x}"], False),  # opened twice
        (["a </think> b </think> \\boxed{x}"], False),
        (["a </think> \\boxed{x} <begin_search> y </end_search>"], False),
        (["<begin_search> </end_search>", ANSWER], False),
        (["no opening </end_search>", ANSWER], False),
        ([SEARCH + " and more", ANSWER], False),
        (["just a turn", ANSWER], False),
        # The policy must not write observations.
        (["<begin_search> x </end_search> <search_result> y </search_result>", ANSWER], False),
        (["a <search_result> y </search_result> </think> \\boxed{x}"], False),
        (["<begin_search> x </end_search>\0So.\n</think>\n\n\\boxed{Oslo}"], False),
        (["a <|im_start|> </think> \\boxed{x}<|im_end|>"], False),
        (["a <|im_end|> </think> \\boxed{x}<|im_end|>"], False),
    ],
)
def test_well_formed(written: list[str], well_formed: bool) -> None:
    assert DIALECT.is_well_formed(written) is well_formed


def test_only_searches_can_be_written() -> None:
    with pytest.raises(UserError, match=r"can only write search\(query\)"):
        DIALECT.render_call(ToolCall("python", {"code": "1"}))


def test_observation_block() -> None:
    assert DIALECT.render_observation("a b") == "\n\n<search_result> a b </search_result>\n\n"
    opening, closing = DIALECT.observation_delimiters()
    assert DIALECT.render_observation("a b") == opening + " a b" + closing
