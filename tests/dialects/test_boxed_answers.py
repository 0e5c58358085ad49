"""An answer in a box between tags is the content of the box."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.marked_answers import unwrap_boxed
from fieldcraft.types import Answer


@pytest.mark.parametrize("name", ["search-r1", "otc", "afm-web", "afm-mhqa"])
def test_a_box_around_the_whole_answer_is_taken_off(name: str) -> None:
    dialect = make_dialect(name, tiny_tokenizer())
    turn = f"{dialect.render_thought('So.')}<answer> \\boxed{{Paris}} </answer>"
    assert dialect.parse([turn]) == Answer("Paris")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{a}", "a"),
        (" \\boxed{ \\text{a b} } ", "a b"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{a} and {b}", "\\boxed{a} and {b}"),
        ("\\boxed{a} or \\boxed{b}", "\\boxed{a} or \\boxed{b}"),
        ("It is \\boxed{a}", "It is \\boxed{a}"),
        ("\\boxed{}", "\\boxed{}"),
        (" a ", "a"),
    ],
)
def test_only_a_box_around_all_of_it(text: str, answer: str) -> None:
    assert unwrap_boxed(text) == answer


@given(st.text(alphabet="ab {}\\"))
def test_any_other_text_stays(text: str) -> None:
    assert unwrap_boxed(text) == text.strip()
