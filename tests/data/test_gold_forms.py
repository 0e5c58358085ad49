"""Forms of gold answers, and correct answers in these forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.gold_forms import detect_form, make_plausible_variants
from fieldcraft.rewards.answers import exact_match


@pytest.mark.parametrize(
    ("gold", "name"),
    [
        ("[1, 2]", "lists"),
        ("(0, 1]", None),
        ("['a', ... 'b']", "lists"),
        ("{2, 3}", "lists"),
        ('["a", "b"]', "lists"),
        ('{"inputs": ["1"], "outputs": ["2"]}', "objects"),
        ("['it's']", "lists"),
        ("[a]", "lists"),
        ("[[a] [b]]", "lists"),
        ("{'it's'}", "lists"),
        ("{'a': 'it's'}", "objects"),
        ('{"a": "say "hi""}', "objects"),
        ("[A]", "options"),
        ("[a] and [b]", None),
        ("{x}", None),
        ("('a')", None),
        ("[]", "missing values"),
        ("N/A", "missing values"),
        ("nan", "missing values"),
        ("None", "missing values"),
        ("Nadia", None),
        ("frozenset({'a'})", "lists"),
        ("Index(['a'], dtype='object')", "lists"),
        ("b'a'", "lists"),
        ("Goethe\nSchiller", "several answers in one text"),
        ("Goethe or Schiller", "several answers in one text"),
        ("Goethe / Schiller", "several answers in one text"),
        ("Goethe | Schiller", "several answers in one text"),
        ("A; B", "several answers in one text"),
        ("True", "truth values"),
        ("false", "truth values"),
        ("A", "options"),
        ("(C)", "options"),
        ("7", "numbers"),
        ("-3.5", "numbers"),
        ("1,234", "numbers"),
        ("$5", "numbers"),
        ("1 1/2", "numbers"),
        ("1e-5", "numbers"),
        ("50%", "numbers"),
        (r"\frac{1}{2}", "mathematics"),
        ("x^2", "mathematics"),
        ("Northport", None),
        ("yes", None),
        ("AC/DC", None),
        ("(Heroes)", None),
        ("the 1990s", None),
        (".", None),
    ],
)
def test_the_form_of_a_gold_answer(gold, name):
    form = detect_form(gold)
    assert (form.name if form else None) == name


@pytest.mark.parametrize("gold", ["Northport", "12345", "3.5", "A", "1/2", "9" * 400])
def test_plausible_answers_are_others_and_hold_the_gold_answer(gold):
    answers = make_plausible_variants(gold)
    assert len(answers) == len(set(answers)) >= 4
    assert gold not in answers
    assert any(exact_match(answer, [gold]) for answer in answers)


def test_formats_of_a_number():
    assert {"12,345", "12345.0", "1.2345e+4", "12345 km", "$12345$"} <= {
        *make_plausible_variants("12345")
    }


@given(st.text())
def test_any_text_may_be_a_gold_answer(text):
    detect_form(text)
    make_plausible_variants(text or "x")
