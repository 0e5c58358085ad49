"""Questions inside prompts: the surrounding instruction is removed, and no part of a question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.prompts import strip_instructions_by_kind, strip_shared_instruction

WORDS = st.text(st.sampled_from("ab ,.$\\"), min_size=1, max_size=12).map(lambda t: f"x{t}y")
# Questions with different beginnings and ends, as in a large file.
QUESTIONS = st.lists(WORDS, min_size=3, max_size=6).map(
    lambda found: [f"{number}{text}{number}?" for number, text in enumerate(found)]
)
BEFORE = st.sampled_from(["", "Solve it: ", "Write Answer: $A as last line.\n\n", "Be brief.\n \n"])
AFTER = st.sampled_from(["", "\n\nRemember: a box.", "\n\nUse\n```\ncode\n```\nat the end."])


@given(QUESTIONS, BEFORE, AFTER)
def test_the_instruction_around_questions_is_taken_away(
    questions: list[str], before: str, after: str
) -> None:
    assert (
        strip_shared_instruction([f"{before}{question}{after}" for question in questions])
        == questions
    )


@given(QUESTIONS, QUESTIONS, BEFORE, AFTER)
def test_each_kind_may_end_with_paragraphs_of_its_own(
    questions: list[str], others: list[str], before: str, after: str
) -> None:
    prompts = [f"{before}{question}\n\nIn LaTeX." for question in questions]
    prompts += [f"{before}{question}{after}" for question in others]
    kinds = ["math"] * len(questions) + ["code"] * len(others)
    assert strip_instructions_by_kind(prompts, kinds) == [*questions, *others]


@pytest.mark.parametrize(
    "prompts",
    [
        ["Ada was born in Northport.\n\nWho was born there?", "Bo sails.\n\nWho was born there?"],
        [f"{name} sails.\n\nWho is meant?" for name in ("Ada", "Bo", "Cy")],
        [f"Who wrote this?\n\n{text}" for text in ("One.", "Two.", "Three.")],
        ["Add 1 and 2.\n\nPrint it.", "Add 3 and 4.\n\nPrint it."],  # two may end alike by chance
        ["Who?"],
        [],
    ],
)
def test_what_may_be_the_question_stays(prompts: list[str]) -> None:
    assert strip_shared_instruction(prompts) == prompts
