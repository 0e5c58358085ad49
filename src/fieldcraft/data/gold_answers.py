"""Accepted answers of a record, under any of the keys and in any of the forms that others use."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from fieldcraft.data.options import right_options
from fieldcraft.data.program_tests import tests_in
from fieldcraft.data.records import Malformed, Record, first
from fieldcraft.data.written import items_in, strings_in, value_in
from fieldcraft.dialects.boxes import last_box
from fieldcraft.rewards.answers import visible
from fieldcraft.types import UserError

# Keys of a question; MS MARCO has the last but one, OpenBookQA the last.
QUESTION = ("question", "Question", "problem", "Problem", "query", "question_stem")
_LISTS = ("golden_answers", "answers", "possible_answers")  # PopQA has the last
# Beside a final answer, `answer` is the way to it. ToRA has `gt`.
ANSWERS = (
    *(*_LISTS, "final_answer", "answer", "Answer", "Final answer", "gt", "reference_answer"),
    *("expected_answer", "gold_answer"),
)
# Beside the others: of MuSiQue, of MS MARCO, and what people write.
_MORE = (
    *("answer_aliases", "wellFormedAnswers", "aliases", "answer_alias", "alternative_answers"),
    *("alternate_answers", "acceptable_answers", "accepted_answers", "other_answers"),
)
_SPLIT = "<ans_split>"  # of AutoCoA
_SEPARATOR = re.compile(r"<ans_split>|<\|answer_split\|>")
# GSM8K writes the whole solution, and the answer behind "####".
SOLVED = re.compile(r"(?:\A|\s)####\s*(\S[^\n]*)\s*\Z")
# MS MARCO's answer to a question that its passages do not answer.
_NOTHING = ["No Answer Present."]
_NO_VALUE = ("proof", "notfound")  # NuminaMath's answers to problems that have none
_VALID = ("yes", "true", "1")
_SEEN = ("image", "images", "audio", "video")  # what belongs to a question and is no text


def answers_of(record: Record, where: str) -> tuple[str, ...]:
    """Return all accepted answers, each once, in order. Raises UserError where there is none."""
    try:
        return required_answers(record)
    except Malformed as error:
        raise UserError(f"{where}: {error.sentence}") from error


def required_answers(record: Record) -> tuple[str, ...]:
    """Return the answers of `answers_of`; raises Malformed where there is none."""
    if answers := accepted_answers(record):
        return answers
    raise Malformed(
        "no answer",
        "the question has no answer; add a field 'golden_answers', or 'graded_by' with 'judge'.",
    )


def accepted_answers(record: Record) -> tuple[str, ...]:
    """Return the accepted answers that a record has, maybe none. Of options it is the right one,
    with its letter where the question shows them. Raises Malformed for values that are no texts,
    and where it is open which option is right."""
    listed = next((given for key in ANSWERS if (given := _listed(record.get(key), key))), [])
    if not listed and isinstance(reward := record.get("reward_model"), dict):
        listed = answers_of_verl(reward.get("ground_truth"))
    if not listed and isinstance(truth := record.get("ground_truth"), str | int | float | list):
        listed = answers_of_verl(truth)
    if not listed and isinstance(solution := record.get("solution"), str):  # of MATH
        listed = [last_box(solution)]
    listed = right_options(record, str(first(record, QUESTION)), listed)
    for more in map(record.get, _MORE):
        listed += _listed(more, "answers") if isinstance(more, list | str) else []
    if wrong := [a for a in listed if not isinstance(a, str | int | float | None)]:
        raise Malformed(
            "an answer that is no text",
            f"the answer {wrong[0]!r} is no text; write a list of strings.",
        )
    # A bare NaN, as some public files hold, is a missing value and unequal to itself.
    texts = (_text(answer) for answer in listed if answer is not None and answer == answer)
    return tuple(dict.fromkeys(text for text in texts if visible(text).strip()))


def _text(answer: str | float) -> str:
    """Return an answer as text. A table makes 3.0 of 3 where another row of the column has
    nothing."""
    whole = isinstance(answer, float) and answer.is_integer()
    return f"{answer:.0f}" if whole else str(answer).strip()


def cannot_be_answered(record: Record) -> bool:
    """Tell whether a data set has a question on purpose that its texts do not answer: MuSiQue's
    `answerable`, SQuAD's `is_impossible` or empty `answers`, MS MARCO's words for it, and
    NuminaMath's for problems that ask for a proof."""
    answers = record.get("answers")
    if isinstance(answers, str):
        answers = value_in(answers)
    empty = isinstance(answers, dict) and answers.get("text") == [] and "answer_start" in answers
    said = record.get("answerable") is False or record.get("is_impossible") is True
    said = said or ("problem" in record and str(record.get("answer")).lower() in _NO_VALUE)
    return said or empty or answers == _NOTHING


def is_declared_wrong(record: Record) -> bool:
    """Tell whether a data set says itself that a problem or its solution is not valid, as
    NuminaMath does of some."""
    said = [value for key, value in record.items() if key.endswith("is_valid")]
    return any(str(value).lower() not in _VALID for value in said if value not in (None, ""))


def refuse_unseen_parts(record: Record) -> None:
    """Raise Malformed for a question about something that is no text: an image, as in HLE and
    geometry, or a file, as in GAIA."""
    keys = (*_SEEN, "file_name") if "Final answer" in record else _SEEN
    for key in keys:
        given = record.get(key)
        if given not in (None, "", [], {}) and given == given:
            raise Malformed(f"a question about more than its text, by its key '{key}'")


def _listed(given: Any, key: str) -> list[Any]:
    """Return the answers under a key: a list, one answer, or a list that is written as text. A list
    of numbers in text is a list only under a key of several answers: it may be an answer itself."""
    match given:
        case None | "":
            return []
        case bool():  # of BoolQ and StrategyQA
            return ["yes", "true"] if given else ["no", "false"]
        case {"text": list(texts)}:  # SQuAD on the hub
            return list(texts)
        case {"value": "<unk>", "aliases": []}:  # TriviaQA's test questions, answers withheld
            return []
        case {"value": value, "aliases": list(aliases)}:  # TriviaQA on the hub
            return [value, *aliases]
        case {"Value": value, "Aliases": list(aliases)}:  # TriviaQA
            return [value, *aliases]
        case [{"answer": _, "aliases": list()}, *_]:  # of ComplexWebQuestions
            entries = [entry for entry in given if isinstance(entry, dict)]
            named = ([e.get("answer"), *(e.get("aliases") or ())] for e in entries)
            return [name for names in named for name in names]
        case [{"text": _, "answer_start": _}, *_]:  # SQuAD
            return [span.get("text") for span in given if isinstance(span, dict)]
        case str():
            if isinstance(found := value_in(given), dict) and (inside := _listed(found, key)) != [
                found
            ]:
                return inside
            found = items_in(given) if key in _LISTS else strings_in(given)
            if found is None:
                return [solved[1] if (solved := SOLVED.search(given)) else given]
            return list(found)
        case list():
            return list(given)
    return [given]


def answers_of_verl(given: Any) -> list[Any]:
    """Return the answers in a ground truth of verl, none where it holds tests."""
    truth = ground_truth(given)
    if isinstance(truth, dict) and "target" in truth:  # Search-R1's {"target": [...]}
        truth = truth["target"]
    with_tests = isinstance(truth, str | dict | list) and _are_tests(truth)
    if isinstance(truth, str) and len(several := _SEPARATOR.split(truth)) > 1:
        return list(several)
    return [] if with_tests else _listed(truth, "ground_truth")


def _are_tests(truth: str | dict[str, Any] | list[Any]) -> bool:
    try:
        return tests_in(truth) is not None
    except ValueError:  # tests, though nothing could run them
        return True


def joined_answers(answers: Sequence[str]) -> str:
    """Return the answers as one text, as AutoCoA's files have them. A single one that reads as
    something else ends with the separator."""
    joined = _SPLIT.join(answers)
    plain = len(answers) != 1 or answers_of_verl(joined) == [*answers]
    return joined if plain else joined + _SPLIT


def ground_truth(given: Any) -> Any:
    """Return the content of a ground truth of verl. AFM writes {"target": ..., "question": ...} as
    text."""
    if not isinstance(given, str) or not given.lstrip().startswith("{"):
        return given
    try:
        found = json.loads(given)
    except ValueError:
        return given
    return found if isinstance(found, dict) and "target" in found else given
