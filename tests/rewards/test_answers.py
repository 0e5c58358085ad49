import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.rewards.answers import (
    RULES,
    CoverExactMatch,
    ExactMatch,
    F1Reward,
    FormatReward,
    cover_em,
    exact_match,
    f1,
    normalise,
)
from fieldcraft.types import Task, Trajectory


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("A man, an owl and the sea.", "man owl and sea"),
        ("Theodore's theatre", "theodores theatre"),
        ("U.S.A.", "usa"),
        ("Zürich\n(city)", "zürich city"),
        ("the", ""),
    ],
)
def test_normalise(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "score"),
    [
        ("The Oslo.", ["Bergen", "oslo"], 1, 1),
        # 2 common words of 3 predicted and 2 gold: P = 2/3, R = 1, F1 = 0.8
        ("John F Kennedy", ["John Kennedy"], 0, 0.8),
        # a repeated word counts at most as often as both sides have it: P = 2/3, R = 2/4, F1 = 4/7
        ("x x z", ["x x x y"], 0, 4 / 7),
        # the best gold counts, not the first: 0.5 against 1
        ("red blue", ["red green", "blue red"], 0, 1),
        ("yes it is", ["yes"], 0, 0),
        ("no", ["no way"], 0, 0),
        ("noanswer", ["noanswer given"], 0, 0),
        ("Yes.", ["yes"], 1, 1),
        ("yes", ["no", "yes"], 1, 1),
        ("Bergen", ["Oslo"], 0, 0),
        ("", ["Oslo"], 0, 0),
        ("", ["The The"], 0, 0),  # no prediction is right, regardless of what normalisation leaves
        # if normalisation leaves nothing of a gold answer, the text itself is compared
        ("the the", ["The The"], 1, 1),
        (" THE ", ["The"], 1, 1),
        ("An", ["The"], 0, 0),
        ("Oslo", ["The"], 0, 0),
        ("!", ["!"], 1, 1),
        ("?", ["!"], 0, 0),
        ("a", ["The", "!"], 0, 0),
        ("Oslo", [], 0, 0),
    ],
)
def test_exact_match_and_f1(prediction: str, golds: list[str], em: float, score: float) -> None:
    assert exact_match(prediction, golds) == em
    assert f1(prediction, golds) == pytest.approx(score)


@pytest.mark.parametrize(
    ("prediction", "golds", "covered"),
    [
        ("It was written by Jane Austen, in 1813.", ["Mary Shelley", "jane austen"], 1),
        ("Jane Austen", ["Jane Austen"], 1),
        ("Austen", ["Jane Austen"], 0),  # the gold answer must be whole
        ("Jane and Austen", ["Jane Austen"], 0),  # and in one piece
        ("The  Beatles!", ["beatles"], 1),
        ("Paris^1^ it is", ["Paris"], 1),  # footnote marks are attached to the preceding word
        ("It is unknown.", ["no"], 0),  # a verdict is a separate word
        ("No, she never did", ["no"], 1),
        ("anything?", ["The", "?"], 0),  # nothing is left of either gold answer
        ("?", ["The", "?"], 1),
        ("", ["Oslo"], 0),
        ("Oslo", [], 0),
    ],
)
def test_cover_em(prediction: str, golds: list[str], covered: float) -> None:
    assert cover_em(prediction, golds) == covered


def test_rules_are_named_and_versioned() -> None:
    names = ["em/squad-7", "f1/squad-7", "cover_em/substring-7"]
    assert dict(zip(names, (exact_match, f1, cover_em), strict=True)) == RULES
    assert [ExactMatch.rule, F1Reward.rule, CoverExactMatch.rule] == names


def test_rewards_score_a_group() -> None:
    task = Task("q", "who?", ("John Kennedy",))
    group = [
        Trajectory(task, answer="john kennedy", well_formed=True),
        Trajectory(task, answer="John F Kennedy"),
        Trajectory(task, answer=None),
        Trajectory(Task("q", "who?", ()), answer="x", well_formed=True),
    ]
    assert ExactMatch()(group) == [1.0, 0.0, 0.0, None]
    assert F1Reward()(group) == [1.0, pytest.approx(0.8), 0.0, None]
    assert CoverExactMatch()(group) == [1.0, 0.0, 0.0, None]
    assert FormatReward()(group) == [1.0, 0.0, 0.0, 1.0]
    names = [
        reward.name for reward in (ExactMatch(), F1Reward(), CoverExactMatch(), FormatReward())
    ]
    assert names == ["em", "f1", "cover_em", "format"]


def test_state_of_a_stateless_reward_is_empty() -> None:
    reward = ExactMatch()
    assert reward.state_dict() == {}
    reward.load_state_dict({})
    with pytest.raises(ValueError, match="ExactMatch is stateless"):
        reward.load_state_dict({"best": 1})


OPTIONS = [
    "A",
    "(A)",
    "A.",
    "A)",
    "**A**",
    "**(A)**",
    "Option A",
    "option (A).",
    "Answer: A",
    "[A]",
]


@pytest.mark.parametrize("letter", ["A", "B", "I", "X"])
@pytest.mark.parametrize("way", OPTIONS)
@pytest.mark.parametrize("gold", ["{}", "({})", "{}."])
def test_an_option_is_its_letter_however_it_is_written(letter: str, way: str, gold: str) -> None:
    wanted = gold.format(letter)
    answer = way.replace("A", letter) if letter != "A" else way
    answer = answer.replace(f"{letter}nswer", "Answer")
    assert exact_match(answer, [wanted]) == f1(answer, [wanted]) == 1.0
    other = "C" if letter != "C" else "D"
    assert exact_match(answer, [other]) == 0.0
    assert exact_match("An apple", [wanted]) == 0.0


@pytest.mark.parametrize("answer", ["A, B", "A B", "(A) (B)", "A & B", "A\nB", "a B", "B+", "B#"])
def test_several_letters_are_no_option(answer: str) -> None:
    """An article and a letter look like two options, so the article is not removed."""
    assert exact_match(answer, ["B"]) == f1(answer, ["B"]) == 0.0


@pytest.mark.parametrize("gold", ["A, C", "A C", "(A), (C)", "A and C", "A;C", "A, and C"])
def test_several_options_are_all_of_their_letters(gold: str) -> None:
    for answer in ("A, C", "C and A", "AC", "(A) (C)", "a, c.", "A & C"):
        assert exact_match(answer, [gold]) == f1(answer, [gold]) == 1.0
    for answer in ("C", "A", "A, B, C", "B, C", "the C", "A and Oslo"):
        assert exact_match(answer, [gold]) == cover_em(answer, [gold]) == 0.0


def test_three_options_with_a_comma_before_the_last() -> None:
    gold = "A, B, and C"
    assert exact_match("ABC", [gold]) == exact_match("C, B and A", [gold]) == 1.0
    assert exact_match("B and C", [gold]) == 0.0


@pytest.mark.parametrize("answer", ["（A）", "Ａ", "A。", "《A》", "A!", "The answer: A"])
@pytest.mark.parametrize("letter", ["A", "B"])
def test_an_option_in_the_punctuation_of_other_scripts(answer: str, letter: str) -> None:
    given = answer.replace("Ａ", chr(ord(letter) + 0xFEE0)).replace("A", letter)
    assert exact_match(given, [letter]) == 1.0


def test_the_letter_of_an_option_is_covered_as_a_word() -> None:
    assert cover_em("It cannot be determined", ["B"]) == cover_em("AB", ["B"]) == 0.0
    assert cover_em("The answer is B.", ["B"]) == 1.0


PAIRS = ['""', "''", "``", "“”", "„“", "‘’", "«»", "‹›", "()", "[]", "{}", "__", "$$", "  "]
WRAPPED = st.lists(st.sampled_from([*PAIRS, "****", ".", ". "]), max_size=4)


def wrap(text: str, signs: list[str]) -> str:
    """Return a text with each pair of signs around it, and each full stop after it."""
    for sign in signs:
        half = 0 if sign.strip() == "." else len(sign) // 2
        text = sign[:half] + text + sign[half:]
    return text


@given(st.sampled_from("ABCDIX"), WRAPPED, st.sampled_from(["", "Option ", "Answer: "]))
def test_an_option_is_its_letter_whatever_is_around_it(
    letter: str, signs: list[str], before: str
) -> None:
    answer = wrap(before + letter, signs)
    assert exact_match(answer, [letter]) == f1(answer, [letter]) == 1.0
    assert exact_match(answer, ["E"]) == exact_match(answer, ["The"]) == 0.0


@given(st.sampled_from(["A", "The", "the", "An", "A a"]), WRAPPED, WRAPPED)
def test_an_article_that_is_a_whole_answer_stays(
    word: str, of_answer: list[str], of_gold: list[str]
) -> None:
    assert exact_match(wrap(word, of_answer), [wrap(word, of_gold)]) == 1.0
    assert exact_match(wrap(word, of_answer), ["!"]) == 0.0


@pytest.mark.parametrize("sign", [*"!?\"'.,:;()[]*-+`“«…。", "...", "''", '"."', "--"])
def test_signs_that_are_whole_answers_are_told_apart(sign: str) -> None:
    assert exact_match(sign, [sign]) == exact_match(f" {sign} ", [sign]) == 1.0
    assert exact_match(sign, ["#"]) == exact_match(sign, ["A"]) == 0.0
    assert exact_match("A", [sign]) == exact_match("", [sign]) == 0.0


def test_a_gold_answer_in_quotation_marks_is_the_answer_inside() -> None:
    assert exact_match("A", ['"A"']) == exact_match("Option B", ["“B”"]) == 1.0
    assert exact_match("Oslo", ["'Oslo'"]) == exact_match('"Oslo."', ["Oslo"]) == 1.0
    assert exact_match("A+", ["A"]) == exact_match("A-", ["A+"]) == 0.0


def test_letters_are_options_only_where_the_gold_answer_is_one() -> None:
    assert exact_match("Option B", ["Plan B"]) == 0.0
    assert exact_match("Option A", ["option"]) == 1.0  # by SQuAD's rule, "a" is an article
    assert exact_match("A", ["a"]) == 1.0
    assert exact_match("(5)", ["5"]) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("दिल्ली।", "दिल्ली"),
        ("« Paris »", "Paris"),
        ("the 2001–2002 season", "2001-2002 season"),
        ("Beyonce\u0301", "Beyoncé"),
        ("北京。", "北京"),
        ("القاهرة؟", "القاهرة"),
        ("O’Brien", "O'Brien"),
    ],
)
def test_punctuation_and_marks_of_all_scripts(answer: str, gold: str) -> None:
    assert exact_match(answer, [gold]) == exact_match(gold, [answer]) == 1.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("बिल", "बेल"), ("กิน", "กัน"), ("á", "a\u0329"), ("a\u0329 b", "b"), ("كتب", "كتاب")],
)
def test_words_that_differ_in_marks_differ(answer: str, gold: str) -> None:
    assert exact_match(answer, [gold]) == 0.0


UNSEEN = ["\u200b", "\u2060", "\ufeff", "\u00ad", "\u200e", "\u202c"]


@given(st.data())
def test_signs_that_show_nothing_are_not_compared(data: st.DataObject) -> None:
    answer, gold = data.draw(st.sampled_from([("Bexley Fen", "the Bexley Fen"), ("(B)", "B")]))
    signs = st.lists(st.sampled_from(UNSEEN), max_size=2).map("".join)
    marked = "".join(sign + data.draw(signs) for sign in answer)
    marked = data.draw(signs) + marked
    assert exact_match(marked, [gold]) == f1(marked, [gold]) == cover_em(marked, [gold]) == 1
    assert exact_match(answer, [f"\u200b{gold}\ufeff"]) == 1


@pytest.mark.parametrize("sign", UNSEEN)
def test_an_answer_that_shows_nothing_is_none(sign: str) -> None:
    assert exact_match(sign, [sign, "!"]) == 0


def test_joiners_between_letters_are_compared() -> None:
    assert exact_match("می\u200cخواهم\u200c", ["می\u200cخواهم"]) == 1
    assert exact_match("میخواهم", ["می\u200cخواهم"]) == 0
