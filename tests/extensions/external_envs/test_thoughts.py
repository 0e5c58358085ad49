"""Thoughts of turns as blocks, which their client returns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.extensions.external_envs.thoughts import join_thought, split_thought

PIECES = st.sampled_from(
    ["<think>", "</think>", "<thinking>", "</thinking>", "\n", " ", "Hm.", "Ada", "<tool_call>{}"]
)


@given(st.lists(PIECES | st.text(max_size=3), max_size=8).map("".join))
def test_a_split_turn_is_joined_to_the_same_text(text: str) -> None:
    thought, rest = split_thought(text)
    assert ("" if thought is None else join_thought(thought.text, thought.seal)) + rest == text
    if thought is not None:
        assert join_thought("", thought.seal) + rest == text  # a client that does not show it


@pytest.mark.parametrize(
    ("turn", "thought", "rest"),
    [
        ("<think>\n Hm. \n</think>\n\nAda", "Hm.", "Ada"),
        ("Hm.</think>Ada", "Hm.", "Ada"),  # the template has opened it
        ("<think>\n\n</think>\n\nAda", "", "Ada"),
        ("<think>Hm.", "Hm.", ""),
        ("<thinking>Hm.</thinking>Ada", "Hm.", "Ada"),
        ("I write <think> as text.", None, "I write <think> as text."),
        ("", None, ""),
    ],
)
def test_which_part_of_a_turn_is_its_thought(turn: str, thought: str | None, rest: str) -> None:
    block, remaining = split_thought(turn)
    assert (None if block is None else block.text, remaining) == (thought, rest)


def test_a_seal_of_others_is_ignored() -> None:
    sealed, _ = split_thought("<think>Hm.</think>Ada")
    assert sealed is not None
    for seal in ("", "EqQB!", "/w==", sealed.seal):
        assert join_thought("No.", seal) == "<think>\nNo.\n</think>\n\n"
    assert join_thought("", "") == ""
