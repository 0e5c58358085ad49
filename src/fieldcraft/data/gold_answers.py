"""Accepted answers of a record, under any of the keys and forms used by published data sets."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from typing import Any

from fieldcraft.data.literals import parse_list_items, parse_string_list, parse_value
from fieldcraft.data.multiple_choice import (
    AMBIGUOUS_KEYS,
    CHOSEN_OPTION_KEYS,
    OPTION_KEYS,
    find_correct_options,
)
from fieldcraft.data.program_tests import parse_tests
from fieldcraft.data.records import Record, RecordError, first_filled
from fieldcraft.dialects.marked_answers import find_last_boxed
from fieldcraft.rewards.answers import normalise_or_raw, strip_invisible
from fieldcraft.types import UserError

# Keys of a question; the last but one is MS MARCO's, the last OpenBookQA's.
QUESTION_KEYS = ("question", "Question", "problem", "Problem", "query", "question_stem")
_ANSWER_LIST_KEYS = ("golden_answers", "answers", "possible_answers")  # PopQA has the last
# Next to a final answer, `answer` is the solution path. `gt` is ToRA's.
ANSWER_KEYS = (
    *(
        *_ANSWER_LIST_KEYS,
        "final_answer",
        "answer",
        "Answer",
        "Final answer",
        "gt",
        "reference_answer",
    ),
    *("expected_answer", "gold_answer"),
)
# Additional keys: of MuSiQue, of MS MARCO, and common user-written ones.
_ALIAS_KEYS = (
    *("answer_aliases", "wellFormedAnswers", "aliases", "answer_alias", "alternative_answers"),
    *("alternate_answers", "acceptable_answers", "accepted_answers", "other_answers"),
)
_AUTOCOA_SEPARATOR = "<ans_split>"  # AutoCoA's
_SEPARATOR_REGEX = re.compile(r"<ans_split>|<\|answer_split\|>")
# GSM8K writes the whole solution, followed by "####" and the answer.
GSM8K_ANSWER = re.compile(r"(?:\A|\s)####\s*(\S[^\n]*)\s*\Z")
# MS MARCO's answer to a question that its passages do not answer.
_MS_MARCO_NO_ANSWER = ["No Answer Present."]
_NUMINAMATH_NO_ANSWER = ("proof", "notfound")  # NuminaMath's values for problems without answer
_TRUE_WORDS = ("yes", "true", "1")
_MEDIA_KEYS = ("image", "images", "audio", "video")  # parts of a question that are not text


def parse_answers(record: Record, location: str) -> tuple[str, ...]:
    """Return all accepted answers, without repetitions, in order. Raises UserError if there are
    none."""
    try:
        return require_answers(record)
    except RecordError as error:
        raise UserError(f"{location}: {error.message}") from error


def require_answers(record: Record) -> tuple[str, ...]:
    """Return the answers as `parse_answers` does; raise RecordError if there are none."""
    if answers := find_accepted_answers(record):
        return answers
    raise RecordError(
        "no answer",
        "the question has no answer; add a field 'golden_answers', or 'graded_by' with 'judge' or"
        " 'rubric'.",
    )


def find_accepted_answers(record: Record) -> tuple[str, ...]:
    """Return the accepted answers of a record, which may be none. For multiple choice, return the
    correct option, with its letter if the question shows letters. Raises RecordError for values
    that are not text, and if the correct option is ambiguous."""
    listed = next(
        (given for key in ANSWER_KEYS if (given := _list_answers(record.get(key), key))), []
    )
    if not listed and isinstance(reward := record.get("reward_model"), dict):
        listed = parse_verl_answers(reward.get("ground_truth"))
    if not listed and isinstance(truth := record.get("ground_truth"), str | int | float | list):
        listed = parse_verl_answers(truth)
    if not listed and isinstance(solution := record.get("solution"), str):  # of MATH
        listed = [find_last_boxed(solution)]
    listed = find_correct_options(record, str(first_filled(record, QUESTION_KEYS)), listed)
    for more in map(record.get, _ALIAS_KEYS):
        listed += _list_answers(more, "answers") if isinstance(more, list | str) else []
    if wrong := [a for a in listed if not isinstance(a, str | int | float | None)]:
        raise RecordError(
            "an answer that is not text",
            f"the answer {wrong[0]!r} is not text; write a list of strings.",
        )
    texts = (_answer_text(answer) for answer in listed if not _is_missing(answer))
    return tuple(dict.fromkeys(text for text in texts if strip_invisible(text).strip()))


def _is_missing(answer: str | float | None) -> bool:
    """Return whether an answer is missing: None, or a bare NaN or Infinity, as in some public
    files."""
    return answer is None or (isinstance(answer, float) and not math.isfinite(answer))


def _answer_text(answer: str | float) -> str:
    """Return an answer as text. A table column with missing values stores 3 as 3.0."""
    is_integer = isinstance(answer, float) and answer.is_integer()
    return f"{answer:.0f}" if is_integer else str(answer).strip()


def is_unanswerable(record: Record) -> bool:
    """Return whether a data set marks a question as unanswerable: MuSiQue's `answerable`, SQuAD's
    `is_impossible` or empty `answers`, MS MARCO's phrase for it, and NuminaMath's for problems that
    ask for a proof."""
    answers = record.get("answers")
    if isinstance(answers, str):
        answers = parse_value(answers)
    empty = isinstance(answers, dict) and answers.get("text") == [] and "answer_start" in answers
    is_marked = record.get("answerable") is False or record.get("is_impossible") is True
    is_marked = is_marked or (
        "problem" in record and str(record.get("answer")).lower() in _NUMINAMATH_NO_ANSWER
    )
    return is_marked or empty or answers == _MS_MARCO_NO_ANSWER


def is_declared_invalid(record: Record) -> bool:
    """Return whether a data set declares a problem or its solution invalid, as NuminaMath does."""
    flags = [value for key, value in record.items() if key.endswith("is_valid")]
    return any(str(value).lower() not in _TRUE_WORDS for value in flags if value not in (None, ""))


def require_text_only(record: Record) -> None:
    """Raise RecordError for a question that involves more than text: an image, as in HLE and
    geometry, or a file, as in GAIA."""
    keys = (*_MEDIA_KEYS, "file_name") if "Final answer" in record else _MEDIA_KEYS
    for key in keys:
        given = record.get(key)
        if given not in (None, "", [], {}) and given == given:
            raise RecordError(f"a question about more than its text, by its key '{key}'")


def _list_answers(given: Any, key: str) -> list[Any]:
    """Return the answers under a key: a list, one answer, or a list written as text. A list of
    numbers in text counts as a list only under a key of several answers: it may be an answer."""
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
            if isinstance(found := parse_value(given), dict) and (
                inside := _list_answers(found, key)
            ) != [found]:
                return inside
            found = (
                parse_list_items(given) if key in _ANSWER_LIST_KEYS else parse_string_list(given)
            )
            if found is None:
                return [solved[1] if (solved := GSM8K_ANSWER.search(given)) else given]
            return list(found)
        case list():
            return list(given)
    return [given]


def parse_verl_answers(given: Any) -> list[Any]:
    """Return the answers in a verl ground truth, or an empty list if it holds tests."""
    truth = parse_ground_truth(given)
    if isinstance(truth, dict) and "target" in truth:  # Search-R1's {"target": [...]}
        truth = truth["target"]
    has_tests = isinstance(truth, str | dict | list) and _are_tests(truth)
    if isinstance(truth, str) and len(parts := _SEPARATOR_REGEX.split(truth)) > 1:
        return list(parts)
    return [] if has_tests else _list_answers(truth, "ground_truth")


def _are_tests(truth: str | dict[str, Any] | list[Any]) -> bool:
    try:
        return parse_tests(truth) is not None
    except ValueError:  # tests, although they cannot be run
        return True


def join_answers(answers: Sequence[str]) -> str:
    """Return the answers as one text, as in AutoCoA's files. A single answer that would be parsed
    differently ends with the separator."""
    joined = _AUTOCOA_SEPARATOR.join(answers)
    is_unambiguous = len(answers) != 1 or parse_verl_answers(joined) == [*answers]
    return joined if is_unambiguous else joined + _AUTOCOA_SEPARATOR


def parse_ground_truth(given: Any) -> Any:
    """Return the content of a verl ground truth. AFM writes {"target": ..., "question": ...} as
    text."""
    if not isinstance(given, str) or not given.lstrip().startswith("{"):
        return given
    try:
        found = json.loads(given)
    except ValueError:
        return given
    return found if isinstance(found, dict) and "target" in found else given


# -- aliases -----------------------------------------------------------------------------------

# A list that includes the answer itself holds its aliases, or the options of a multiple-choice
# question. A single record is ambiguous, and accepting options as aliases would reward wrong
# answers. A whole file is not: a question never has a single option. If any list has one item, the
# key holds aliases.


def find_alias_keys(records: Sequence[Record]) -> list[str]:
    """Return the keys of lists that hold aliases of the answer. A key qualifies if in some record
    of the file its list contains only the answer."""
    return [
        key
        for key in AMBIGUOUS_KEYS
        if any(len(_find_aliases(record, key)) == 1 for record in records)
    ]


def merge_aliases(record: Record, keys: Collection[str]) -> Record:
    """Return a record that accepts its answer and all aliases listed under one of the keys; any
    other record is returned unchanged."""
    found = next((names for key in keys if (names := _find_aliases(record, key))), [])
    return (
        record | {"golden_answers": [first_filled(record, CHOSEN_OPTION_KEYS), *found]}
        if found
        else record
    )


def _find_aliases(record: Record, key: str) -> list[str]:
    """Return the texts of a list that contains the answer, compared after normalisation. Return an
    empty list otherwise, or if other keys hold the accepted answers or the options."""
    if first_filled(record, ("golden_answers", *OPTION_KEYS)) is not None:
        return []
    value, answer = record.get(key), first_filled(record, CHOSEN_OPTION_KEYS)
    texts = parse_list_items(value) if isinstance(value, str) else value
    if not isinstance(answer, str) or not isinstance(texts, list) or not all(map(_is_text, texts)):
        return []
    return texts if normalise_or_raw(answer) in map(normalise_or_raw, texts) else []


def _is_text(value: object) -> bool:
    return isinstance(value, str)
