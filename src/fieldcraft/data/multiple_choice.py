"""Questions with options: MMLU, ARC, CommonsenseQA, FlashRAG and others.

The options are in `choices` or `options`, or in `answers` if another key gives the index of one of
them. They are appended to the question, and the correct one is accepted by its text, by its letter
and by both, as in "B. Paris". A record with an ambiguous correct option is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from fieldcraft.data.literals import parse_list_items, parse_value
from fieldcraft.data.records import Record, RecordError

Options = Mapping[str, Any]  # texts or numbers, keyed by letter

OPTION_KEYS = ("options", "choices")
AMBIGUOUS_KEYS = ("answers", "possible_answers")  # options, or all accepted answers
CHOSEN_OPTION_KEYS = (
    "answer",
    "Answer",
    "correct_answer",
)  # the text of an option, its letter or its number
# The index of an option, never its text. The second group has other meanings elsewhere.
_POSITION_KEYS = (
    *("answerKey", "answer_key", "answer_index", "answer_idx"),
    *("correct_option", "correct_index", "cop"),  # MedMCQA has the last
)
_LOOSE_POSITION_KEYS = ("correct", "label", "gold")
_WITHHELD_POSITION = -1
_LETTER_LABEL = re.compile(r"\(?(\w)[.:]?\)?")
_SEVERAL_LETTERS = re.compile(r"\W*[A-Z](?:(?:\W|and)*[A-Z])+\W*")  # AC, or A, C, or A and C


def flatten_question(record: Record) -> Record:
    """Return a record with its question as text and its options under a separate key, if one object
    contains both, as in the files of ARC and CommonsenseQA."""
    match record.get("question"):
        case {"stem": str(stem), "choices": choices}:
            return record | {"question": stem, "choices": choices}
    return record


def append_options(record: Record, question: str) -> str:
    """Return the question followed by its options, one per line, unless it already shows them."""
    options = parse_options(record)
    if not options or _shows_options(question, options):
        return question
    lines = [f"{letter}. {text}" for letter, text in options.items()]
    return "\n".join([question.rstrip(), *lines])


def find_correct_options(record: Record, question: str, listed: Sequence[Any]) -> list[Any]:
    """Return the accepted answers of a record. With options, these are the text of the correct one
    and, if the question shows the options, its letter and both combined. Without options, these are
    the `listed` ones.

    Raises RecordError if the correct option is ambiguous.
    """
    options = parse_options(record)
    if not options:
        _require_clear_list(record)
        return list(listed)
    if several := _find_joint_letters(record, options):
        return _join_letters(several, options, question)
    given = (
        []
        if _find_option_list_key(record)
        else [value for value in listed if _is_single_value(value)]
    )
    correct = [_find_letter(value, options) for value in given]
    named = [_find_letter(value, options) for value in _present_values(record, CHOSEN_OPTION_KEYS)]
    named += [
        _letter_at_position(value, options) for value in _present_values(record, _POSITION_KEYS)
    ]
    correct = _distinct(correct) or _distinct(named)
    loose = [
        int(o) if str(o).isdecimal() else o for o in _present_values(record, _LOOSE_POSITION_KEYS)
    ]
    correct = correct or _distinct([_letter_at_position(position, options) for position in loose])
    if not correct and (given or named):
        raise RecordError(
            "an answer that is none of its options",
            f"the answer is none of the options {[*options.values()]}: correct or remove the"
            " record.",
        )
    if not {*_distinct(named)} <= {*correct} or (len(correct) > 1 and not given):
        raise RecordError("answers that are different options")
    texts = [options[letter] for letter in correct]
    if not _shows_options(question, options):
        return texts
    return texts + correct + [f"{name}. {text}" for name, text in zip(correct, texts, strict=True)]


def _find_joint_letters(record: Record, options: Options) -> list[str]:
    """Return the letters of the options that an answer declares jointly correct: ["A", "C"], "AC",
    "A, C". The list is empty for a single correct option. Each item of `golden_answers` is correct
    by itself."""
    found = (_parse_letters(record[key], options) for key in CHOSEN_OPTION_KEYS if record.get(key))
    return next((letters for letters in found if len(letters) > 1), [])


def _parse_letters(given: Any, options: Options) -> list[str]:
    if isinstance(given, str):
        is_joint = _SEVERAL_LETTERS.fullmatch(given) is not None and not _is_option_text(
            given, options
        )
        given = parse_list_items(given) or (re.findall("[A-Z]", given) if is_joint else [])
    if not isinstance(given, list) or not all(map(_is_single_value, given)):
        return []
    letters = [_find_letter(item, options) for item in given]
    return sorted(letters) if all(letters) and len({*letters}) == len(letters) else []


def _join_letters(letters: Sequence[str], options: Options, question: str) -> list[Any]:
    """Return the single answer that names several options. Raises RecordError if the question does
    not show them."""
    if _shows_options(question, options):
        return [", ".join(letters)]
    raise RecordError("several correct options, which the question does not show")


# -- location of the options -------------------------------------------------------------------


def parse_options(record: Record) -> Options:
    """Return the options of a record, or {} if it has none. Raises RecordError for options that
    cannot be parsed, because they cannot be shown."""
    for key in OPTION_KEYS:
        if found := _label_options(given := record.get(key)):
            return found
        if given and isinstance(given, list | str):
            raise RecordError(
                f"'{key}' in an unsupported form",
                f"'{key}' is not a list of up to {len(ascii_uppercase)} texts: write one, or"
                " objects with 'label' and 'text'.",
            )
    list_key = _find_option_list_key(record)
    return _label_options(record[list_key]) if list_key else {}


def _label_options(given: Any) -> Options:
    """Return the options of a list, which may be written as text, of objects or columns of labels
    and texts, or of a mapping by letter, or {} for other values."""
    if isinstance(given, str):
        given = parse_list_items(given) or parse_value(given)
    while isinstance(given, list) and given and given[-1] is None:  # tables pad their rows
        given = given[:-1]
    match given:
        case {"label": list(labels), "text": list(texts)} if len(labels) == len(texts):
            found = dict(zip(map(str, labels), texts, strict=True))
        case [{"label": _, "text": _}, *_] if all(isinstance(each, dict) for each in given):
            found = {str(each.get("label")): each.get("text") for each in given}
        case dict():
            found = {str(letter): text for letter, text in given.items() if text is not None}
        case list() if len(given) <= len(ascii_uppercase):
            found = dict(zip(ascii_uppercase, given, strict=False))
        case _:
            return {}
    is_valid = all(
        re.fullmatch(r"\w", name) and _is_option_value(text) for name, text in found.items()
    )
    return _strip_letters(found) if is_valid else {}


def _strip_letters(options: Options) -> Options:
    """Return the options without the letters that all of them start with, as in "A)21"."""
    found = {name: re.match(rf"\(?{name}[.):]\s*(?=\S)", str(o)) for name, o in options.items()}
    stripped = {name: match.string[match.end() :] for name, match in found.items() if match}
    return stripped if len(stripped) == len(options) else options


def _find_option_list_key(record: Record) -> str:
    """Return the key of a list of answers that are options, because another key gives the index of
    one of them, or "" if there is none."""
    for key, options in _ambiguous_lists(record):
        letters = [
            value for value in _present_values(record, CHOSEN_OPTION_KEYS) if isinstance(value, str)
        ]
        letters = [
            value
            for value in letters
            if not _is_option_text(value, options) and _LETTER_LABEL.fullmatch(value)
        ]
        letters = [value for value in letters if not value.isdecimal()]
        if any(
            _match_positions(value, options)
            for value in [*letters, *_present_values(record, _POSITION_KEYS)]
        ):
            return key
    return ""


def _require_clear_list(record: Record) -> None:
    """Raise RecordError for several answers if another key repeats one of them, or may give the
    index of one: then it is ambiguous whether they are options or aliases of the same answer.
    """
    for key, options in _ambiguous_lists(record):
        for chosen_key in CHOSEN_OPTION_KEYS:
            value = record.get(chosen_key)
            if _is_single_value(value) and (
                _is_option_text(value, options) or _match_positions(value, options)
            ):
                raise RecordError(
                    f"several '{key}' and one '{chosen_key}', which are options or other names",
                    f"it is ambiguous whether '{key}' holds options or aliases of '{chosen_key}':"
                    f" name it 'options' if only '{chosen_key}' is correct, 'aliases' if all are.",
                )


def _ambiguous_lists(record: Record) -> list[tuple[str, Options]]:
    """Return the lists of different answers that may be options, by key."""
    found = [(key, _label_options(record.get(key))) for key in AMBIGUOUS_KEYS]
    if record.get("golden_answers"):
        return []
    return [
        (key, options) for key, options in found if len({*map(_normalise, options.values())}) > 1
    ]


# -- the selected option -----------------------------------------------------------------------


def _find_letter(answer: Any, options: Options) -> str:
    """Return the letter of the option that an answer identifies by text or position, or "" if there
    is none. Raises RecordError if it may be several options."""
    matching = [name for name, text in options.items() if _matches_text(answer, name, text)]
    found = _distinct([*matching, *_match_positions(answer, options)])
    if len(found) > 1 and not _have_same_text(found, options):
        raise RecordError(
            "an answer that may be several of its options",
            f"the answer {answer!r} may be the options {' and '.join(found)}: write the letter as"
            " 'answerKey'.",
        )
    return found[0] if found else _letter_at_position(answer, options)


def _letter_at_position(position: Any, options: Options) -> str:
    """Return the letter of the option at a position: a letter, or an index from 0. Return "" for
    other values. Raises RecordError for a number that matches several options, or none."""
    if position == _WITHHELD_POSITION:
        raise RecordError(
            "an answer that is withheld",
            "the answer -1 names no option, as in test sets without answers: give a file with"
            " them.",
        )
    found = _match_positions(position, options)
    if len(found) > 1:
        raise RecordError("an answer that may be several of its options")
    if not found and isinstance(position, int):
        raise RecordError(
            "the index of a choice that does not exist",
            f"there is no choice {position}; count from 0.",
        )
    return found[0] if found else ""


def _match_positions(answer: Any, options: Options) -> list[str]:
    """Return the letters of options that an answer identifies, by letter or by index from 0."""
    letter = _LETTER_LABEL.fullmatch(str(answer).strip())
    found = [name for name in options if letter and name.casefold() == letter[1].casefold()]
    if found and isinstance(answer, str) and found[0].isdecimal():
        return found  # a label, as in ARC, and not a position
    if isinstance(answer, int) or answer.strip().isdecimal():
        found += [*options][int(answer) : int(answer) + 1] if int(answer) >= 0 else []
    return _distinct(found)


def _matches_text(answer: Any, name: str, text: Any) -> bool:
    """Return whether an answer is the text of an option, with or without its letter. A number does
    not match text."""
    if isinstance(answer, int) != isinstance(text, int):
        return False
    return _normalise(re.sub(rf"^\s*\(?{name}[.):]\s*(?=\S)", "", str(answer))) == _normalise(text)


def _shows_options(question: str, options: Options) -> bool:
    """Return whether a question shows each option after its letter."""
    return all(
        re.search(rf"(?<!\w){name}\W{{1,6}}{re.escape(str(text).strip())}", question)
        for name, text in options.items()
    )


def _is_option_text(answer: Any, options: Options) -> bool:
    return _normalise(answer) in map(_normalise, options.values())


def _have_same_text(letters: Sequence[str], options: Options) -> bool:
    return len({_normalise(options[letter]) for letter in letters}) == 1


def _present_values(record: Record, keys: Sequence[str]) -> list[Any]:
    return [record[key] for key in keys if _is_single_value(record.get(key))]


def _is_single_value(value: Any) -> bool:
    """Return whether a value is a text or an integer."""
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _is_option_value(value: Any) -> bool:
    return _is_single_value(value) or (isinstance(value, float) and value == value)


def _normalise(value: Any) -> str:
    return str(value).strip().casefold()


def _distinct(letters: Sequence[str]) -> list[str]:
    return list(filter(None, dict.fromkeys(letters)))
