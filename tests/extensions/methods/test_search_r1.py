import re
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.types import Answer, MalformedCall, ToolCall

DIALECT = make_dialect("search-r1", tiny_tokenizer(), instruction="")
SEARCH = "<think> I need it. </think>\n<search> capital of Norway </search>"
ANSWER = "<think> So. </think>\n<answer> Oslo </answer>"


@pytest.mark.parametrize("think_prefilled", [False, True])
def test_the_policy_opens_its_thinking_itself(think_prefilled: bool) -> None:
    tokenizer = tiny_tokenizer(think_prefilled)
    prompt = make_dialect("search-r1", tokenizer, instruction="").encode_prompt("who?", [])
    assert tokenizer.decode(prompt) == ("<|im_start|>user\nwho?<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("written", "move"),
    [
        ([SEARCH], ToolCall("search", {"query": "capital of Norway"})),
        ([SEARCH + ".\n"], ToolCall("search", {"query": "capital of Norway"})),
        ([SEARCH, ANSWER], Answer("Oslo")),
        ([ANSWER + "\n"], Answer("Oslo")),
        (["<answer> a </answer> <search> b </search>"], Answer("a")),
        (["<search> b </search> <answer> a </answer>"], ToolCall("search", {"query": "b"})),
        (["<search> </search>"], MalformedCall),
        (["x </search>"], MalformedCall),
        (["<answer> </answer>"], None),
        (["x </answer>"], None),
        (["<answer> cut off"], None),
        (["<search> cut off"], None),
        (["nothing<|im_end|>"], None),
        ([ANSWER, "nothing"], None),
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
        ([SEARCH, SEARCH + "\n", ANSWER + "<|im_end|>"], True),
        (["<think>a</think><answer>b</answer>"], True),
        ([SEARCH], False),
        ([], False),
        (["<answer> Oslo </answer>"], False),  # no thought
        ([SEARCH, "<answer> Oslo </answer>"], False),  # no thought after the information
        (["<search> x </search>", ANSWER], False),
        (["So. </think>\n<answer> Oslo </answer>"], False),
        (["<think> a <think> b </think><answer> x </answer>"], False),
        (["<think> a </think> text <answer> x </answer>"], False),
        (["<think> <search> x </search> </think>", ANSWER], False),
        (["<think> a </think><search> x </search><information> y </information>", ANSWER], False),
        (["<think> a </think><search> </search>", ANSWER], False),
        (["<think> a </think><answer> </answer>"], False),
        ([ANSWER, ANSWER], False),
    ],
)
def test_well_formed(written: list[str], well_formed: bool) -> None:
    assert DIALECT.is_well_formed(written) is well_formed


def test_observation_block() -> None:
    assert DIALECT.render_observation("a b") == "\n\n<information>a b</information>\n\n"


def test_real_trajectories_of_search_r1(shared: Path) -> None:
    """Two published rollouts: searches and answers are found; neither always thinks in its tags."""
    text = (shared / "data/trajectories/search_r1_cases.txt").read_text()
    cases = [case.split("<|im_start|>assistant\n")[1] for case in text.split("Question:")[1:]]
    turns = [
        re.split(
            r"\n\n<information>.*?</information>\n\n", case.split("<|im_start|>")[0], flags=re.S
        )
        for case in cases
    ]
    assert [[DIALECT.parse([turn]) for turn in rollout] for rollout in turns] == [
        [
            (ToolCall("search", {"query": "Paul Walker's cars in Fast and Furious"}),),
            (ToolCall("search", {"query": "list of cars paul walker drove in Fast and Furious"}),),
            Answer("Charger"),
        ],
        [
            (ToolCall("search", {"query": "origin of heart's electrical impulses"}),),
            Answer("sinoatrial (SA) node"),
        ],
    ]
    assert [DIALECT.is_well_formed(rollout) for rollout in turns] == [False, False]
    fixed = [turns[1][0], turns[1][1].replace("From", "<think> From", 1)]
    assert DIALECT.is_well_formed(fixed)
