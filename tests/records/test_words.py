"""Words of many scripts."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.records.words import split_words, strip_vowel_points


def test_words_are_lower_case_and_bare_of_accents():
    assert split_words("Beyoncé's “ÅNGSTRÖM” 1,5 Việt İzmir ﬁn") == (
        ["beyonce", "s", "angstrom", "1", "5", "viet", "izmir", "fin"]
    )
    assert split_words("東京 2020 がガ 한국어") == ["東", "京", "2020", "が", "ガ", "한국어"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("किताब, कमल। हिन्दी", ["किताब", "कमल", "हिन्दी"]),
        ("தமிழ் நூல்", ["தமிழ்", "நூல்"]),
        ("كِتَابٌ، شَمْسٌ", ["كِتَابٌ", "شَمْسٌ"]),
        ("שָׁלוֹם עוֹלָם", ["שָׁלוֹם", "עוֹלָם"]),
        ("می‌خواهم", ["می", "خواهم"]),  # the joiner separates parts of a word, like a space
        ("क्‍ष", ["क्ष"]),
        ("กิน", ["กิน"]),  # two signs
        ("กินข้าว", ["กินข้าว", "กิน", "นข้", "ข้า", "าว"]),
        ("စာအုပ်", ["စာအုပ်", "စာ" + "အု", "အု" + "ပ်"]),
        (
            "\U00010330\U00010331 \U00020000\U00020001",
            ["\U00010330\U00010331", "\U00020000", "\U00020001"],
        ),
        ("𝐁old ❤️ naïve", ["bold", "naive"]),
        ("Россия, Ёлка-2", ["россия", "елка", "2"]),
    ],
)
def test_words_of_scripts_with_marks(text, found):
    assert split_words(text) == [unicodedata.normalize("NFKC", word) for word in found]


def test_every_mark_belongs_to_its_word():
    """Exceptions are accents of European scripts, which are omitted, and signs of ideographs."""
    for number in range(0x370, 0x20000):
        mark = chr(number)
        if unicodedata.category(mark).startswith("M") and not 0x3000 <= number < 0x3100:
            assert split_words(f"b{mark}c d") != ["b", "c", "d"], hex(number)


def test_a_long_run_without_spaces_is_found_by_the_words_in_it():
    run = split_words("กินข้าวกับเพื่อนที่บ้าน")
    assert set(split_words("ข้าว")[1:]) < set(run)
    assert max(map(len, run)) <= 6  # two signs with their marks


def test_vowel_points_can_be_left_out():
    pointed, bare = ["كِتَابٌ", "שָׁלוֹם", "किताब", "book"], ["كتاب", "שלום", "किताब", "book"]
    assert [*map(strip_vowel_points, pointed)] == bare


LETTERS = st.characters(categories=["L", "N", "M"])


@given(parts=st.lists(st.text(LETTERS, min_size=1), min_size=1, max_size=6))
def test_no_letter_is_lost_and_no_mark_separates(parts):
    text = " ".join(parts)
    found = split_words(text)
    assert [*map(split_words, parts)] == [split_words(f" {part}.") for part in parts]
    letters = {c for c in unicodedata.normalize("NFKC", text) if c.isalnum()}
    missing = letters - set("".join(found)) - {c for c in letters if split_words(c) != [c]}
    assert not missing


@given(text=st.text(st.characters(codec="latin-1")) | st.text(st.characters(max_codepoint=0x7E)))
def test_words_of_western_texts_are_runs_of_letters_without_accents(text):
    accents = re.compile("[\u0300-\u036f]")
    plain = unicodedata.normalize("NFKC", accents.sub("", unicodedata.normalize("NFKD", text)))
    assert split_words(text) == re.findall(r"\w+", plain.lower())
