"""The thoughts in a turn that is being written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import resolve
from fieldcraft.dialects.thought_parser import StreamingThoughtParser, join_thoughts
from fieldcraft.types import Thought, ThoughtRole

TOKENIZER = tiny_tokenizer()


def reader(name: str) -> StreamingThoughtParser:
    return StreamingThoughtParser(resolve(ComponentKind.DIALECT, name)(TOKENIZER))


@pytest.mark.parametrize(
    ("dialect", "inside", "text", "thoughts"),
    [
        ("autocoa", True, "Hm.\n<begin_search> who </end_search>", "Hm."),
        ("autocoa", True, "So.\n</think>\n\n\\boxed{Oslo}<|im_end|>", "So."),
        ("autocoa", False, "\\boxed{Oslo}", ""),
        ("search-r1", False, "<think> Hm. </think>\n<search> who </search>", "Hm."),
        ("hermes", False, "<think>\nHm.\n</think>\n\nOslo<|im_end|>", "Hm."),
        ("hermes", False, "Oslo<|im_end|>", ""),
        ("retool", True, "I compute.\n<code>\n1\n</code>", "I compute."),
        ("torl", True, "I compute.\n```python\n1\n```\n```output", "I compute."),
        ("torl", True, "So it is \\boxed{42}.", "So it is"),
        ("torl", True, "Is 1 < 2?<|im_end|>", "Is 1 < 2?"),
    ],
)
def test_thoughts_without_tags_and_without_what_follows(dialect, inside, text, thoughts):
    assert join_thoughts(reader(dialect).parse(text, inside)) == thoughts


def test_thoughts_have_their_roles():
    text = "<think>\nI plan.\n</think>\n<plan>\nRead.\n</plan>\n<wiki_search>\nx\n</wiki_search>"
    found = reader("afm-mhqa").parse(text, in_thought=False)
    assert found == [Thought("I plan."), Thought("Read.", ThoughtRole.PLAN)]


@pytest.mark.parametrize(
    ("dialect", "before", "inside"),
    [
        ("autocoa", "Who?\n<think>\n", True),
        ("autocoa", "Who?\n<think>\nSo.</think>", False),
        ("hermes", "Who?\n", False),
        ("retool", "Who?\n", True),
    ],
)
def test_how_a_turn_begins(dialect, before, inside):
    assert reader(dialect).starts_in_thought(before) is inside


PIECES = st.sampled_from(
    ["Hm. ", "<", "<th", "\n", "<think>", "</think>", "<search>", "</search>", "</", "\\", "x > y"]
)


@given(pieces=st.lists(PIECES, max_size=12), inside=st.booleans())
def test_what_was_told_stays_true(pieces, inside):
    """Thoughts reported from settled text only grow, regardless of the following text."""
    read = reader("search-r1")
    text = "".join(pieces)
    reported = ""
    for end in range(len(text) + 1):
        now = join_thoughts(read.parse(read.get_stable_prefix(text[:end]), inside))
        assert now.startswith(reported)
        assert "<think" not in now
        assert "<search" not in now
        reported = now
    assert join_thoughts(read.parse(text, inside)).startswith(reported)
