"""Sentences, and passages that end at sentence ends."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.extensions.curation.sentences import split_passage, split_sentences

TEXT = (
    'Dr. J. R. Moss came from the U.S. Navy. He said: "Go!" Then 12 ships left.  '
    "They sailed to St. Louis (in 1901). what a trip"
)


def test_abbreviations_and_initials_end_no_sentence() -> None:
    assert split_sentences(TEXT) == [
        "Dr. J. R. Moss came from the U.S. Navy. ",
        'He said: "Go!" ',
        "Then 12 ships left.  ",
        "They sailed to St. Louis (in 1901). what a trip",
    ]
    assert split_sentences("") == []


class CopiedText(str):
    """Text that counts the characters that are copied from it."""

    num_copied = 0

    def __getitem__(self, key: Any) -> str:
        found = super().__getitem__(key)
        self.num_copied += len(found)
        return found


def test_a_long_text_is_copied_a_few_times_only() -> None:
    text = CopiedText(TEXT * 100)
    assert "".join(split_sentences(text)) == text
    assert text.num_copied < 10 * len(text)


def test_passages_end_at_sentence_ends() -> None:
    assert split_passage("One two. Three four five. Six. Seven eight nine ten.", 4) == [
        "One two.",
        "Three four five. Six.",
        "Seven eight nine ten.",
    ]


def test_only_a_longer_sentence_is_split_between_words() -> None:
    text = "A b c. One two three four five six seven. Eight."
    assert split_passage(text, 3) == ["A b c.", "One two three", "four five six", "seven. Eight."]
    assert split_passage("  \n ", 3) == []


words = st.lists(st.sampled_from(["Ada", "b.", "Dr.", "12.", "so!", "x?", "(A)", "é", "\n"]))


@given(words, st.integers(1, 7))
def test_no_word_is_lost(written: list[str], max_words: int) -> None:
    text = " ".join(written)
    assert "".join(split_sentences(text)) == text
    passages = split_passage(text, max_words)
    assert " ".join(passages).split() == text.split()
    assert all(0 < len(passage.split()) <= max_words for passage in passages)
