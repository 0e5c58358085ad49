"""The sentence and the words of a passage that state an accepted answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.passages import Passage, format_passages
from fieldcraft.extensions.curation.evidence import Evidence, find_evidence, read_results
from fieldcraft.rewards.answers import exact_match

EUROSTAR = (
    "Eurostar",
    "St. Pancras was rebuilt. The trains end at St. Pancras, in London. A hall burned in 1901.",
)


def test_the_sentence_that_shares_most_words_with_the_question_is_evidence() -> None:
    question = "where do the trains of eurostar end in london"
    assert find_evidence([EUROSTAR], ["st pancras"], question) == Evidence(
        "Eurostar", "The trains end at St. Pancras, in London.", "St. Pancras"
    )


def test_the_first_of_equally_good_sentences_is_evidence() -> None:
    found = find_evidence([("", "Bo ran. Bo sat."), ("", "Bo won.")], ["bo"], "who")
    assert found == Evidence("", "Bo ran.", "Bo")


def test_an_answer_is_written_as_in_the_passage_without_what_surrounds_it() -> None:
    text = 'They won ("the Grand Prix", 1,200 points).'
    found = [find_evidence([("", text)], [gold], "q") for gold in ("Grand Prix!", "1200 points")]
    assert [each.span for each in found if each] == ["Grand Prix", "1,200 points"]
    found = [find_evidence([("", "He left the U.S.")], [gold], "q") for gold in ("US", "U.S.")]
    assert [each.span for each in found if each] == ["U.S", "U.S."]


def test_a_part_of_a_word_is_no_answer() -> None:
    assert find_evidence([("", "In 1901 the Marseille line opened.")], ["Mars", "190"], "q") is None
    assert find_evidence([("", "nothing")], ["The", "", "!"], "q") is None


@pytest.mark.parametrize("answer", ["no", "No.", "yes", "True", "false"])
def test_a_closed_answer_has_no_evidence(answer: str) -> None:
    """Such a word in a passage does not answer the question; another accepted answer still may."""
    text = f"There is {answer} water ocean on Mars, a planet."
    assert find_evidence([("Mars", text)], [answer], "Is Mars a star?") is None
    found = find_evidence([("Mars", text)], [answer, "a planet"], "Is Mars a star?")
    assert found is not None
    assert found.span == "planet"


def test_the_longest_accepted_answer_counts() -> None:
    text = "Jackson ran. Andrew Jackson won."
    found = find_evidence([("", text)], ["Jackson", "Andrew Jackson"], "who ran")
    assert found == Evidence("", "Andrew Jackson won.", "Andrew Jackson")


def test_a_title_states_an_answer_if_the_text_does_not() -> None:
    assert find_evidence([("Ada Moss", "She was a poet.")], ["ada moss"], "who") == Evidence(
        "Ada Moss", "Ada Moss", "Ada Moss"
    )


def test_only_supporting_passages_count() -> None:
    results = [("Other", "It was red."), ("Right one!", "It is red, too.")]
    found = find_evidence(results, ["red"], "q", titles={"right one"})
    assert found is not None
    assert found.title == "Right one!"


def test_results_of_the_search_are_passages() -> None:
    passages = [Passage("1", "A", "b c"), Passage("2", "", "d")]
    assert read_results(format_passages(passages)) == [("A", "b c"), ("", "d")]
    assert read_results("No result.") == []
    assert read_results("a page of another search") == [("", "a page of another search")]


pieces = st.lists(st.sampled_from(["the", "Ada", "A.", '"Moss",', "12%", "é!", "—", "(x)", ". B"]))


@given(pieces, pieces, pieces)
def test_what_is_found_is_graded_as_correct(
    before: list[str], gold: list[str], after: list[str]
) -> None:
    text, answer = " ".join([*before, *gold, *after]), " ".join(gold)
    found = find_evidence([("", text)], [answer], "q")
    if found is not None:
        assert exact_match(found.span, [answer]) == 1.0
        assert found.span in text
