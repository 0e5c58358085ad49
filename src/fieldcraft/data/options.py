"""Questions with options: MMLU, ARC, CommonsenseQA, FlashRAG and others.

The options stand in `choices` or `options`, or in `answers` where another key names one of them by
its place. They are shown behind the question, and the right one is accepted by its text, by its
letter and by both, as in "B. Paris". A record that leaves open which option is right is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from fieldcraft.data.records import Malformed, Record
from fieldcraft.data.written import items_in, value_in

Options = Mapping[str, Any]  # texts, or numbers, by their letters

OPTIONS = ("options", "choices")
MAYBE = ("answers", "possible_answers")  # options, or all answers that are accepted
NAMED = ("answer", "Answer", "correct_answer")  # the text of an option, its letter or its number
# The place of an option, never its text. The second ones mean other things elsewhere.
_PLACES = (
    *("answerKey", "answer_key", "answer_index", "answer_idx"),
    *("correct_option", "correct_index", "cop"),  # MedMCQA has the last
)
_LOOSE_PLACES = ("correct", "label", "gold")
_WITHHELD = -1
_LETTER = re.compile(r"\(?(\w)[.:]?\)?")
_TOGETHER = re.compile(r"\W*[A-Z](?:(?:\W|and)*[A-Z])+\W*")  # AC, or A, C, or A and C


def flat_question(record: Record) -> Record:
    """Return a record with its question as a text and its options beside it, where one object holds
    both, as in the files of ARC and CommonsenseQA."""
    match record.get("question"):
        case {"stem": str(stem), "choices": choices}:
            return record | {"question": stem, "choices": choices}
    return record


def with_options(record: Record, question: str) -> str:
    """Return the question with its options behind it, a line each, unless it shows them itself."""
    options = options_of(record)
    if not options or _shows(question, options):
        return question
    lines = [f"{letter}. {text}" for letter, text in options.items()]
    return "\n".join([question.rstrip(), *lines])


def right_options(record: Record, question: str, listed: Sequence[Any]) -> list[Any]:
    """Return the accepted answers of a record: of one with options the text of the right one and,
    where the question shows the options, its letter and both; of any other one those that are
    `listed`.

    Raises Malformed where the record leaves open which option is right.
    """
    options = options_of(record)
    if not options:
        _refuse_unclear_list(record)
        return list(listed)
    if several := _right_together(record, options):
        return _shown_letters(several, options, question)
    given = [] if _place_beside(record) else [one for one in listed if _is_one(one)]
    right = [_letter_of(one, options) for one in given]
    named = [_letter_of(one, options) for one in _values(record, NAMED)]
    named += [_letter_at(one, options) for one in _values(record, _PLACES)]
    right = _distinct(right) or _distinct(named)
    loose = [int(o) if str(o).isdecimal() else o for o in _values(record, _LOOSE_PLACES)]
    right = right or _distinct([_letter_at(place, options) for place in loose])
    if not right and (given or named):
        raise Malformed(
            "an answer that is none of its options",
            f"the answer is none of the options {[*options.values()]}: correct or remove the"
            " record.",
        )
    if not {*_distinct(named)} <= {*right} or (len(right) > 1 and not given):
        raise Malformed("answers that are different options")
    texts = [options[letter] for letter in right]
    if not _shows(question, options):
        return texts
    return texts + right + [f"{name}. {text}" for name, text in zip(right, texts, strict=True)]


def _right_together(record: Record, options: Options) -> list[str]:
    """Return the letters of several options of which an answer says that all are right: ["A", "C"],
    "AC", "A, C". The list is empty where one is right. What is in `golden_answers` is right
    alone."""
    found = (_letters_in(record[key], options) for key in NAMED if record.get(key))
    return next((letters for letters in found if len(letters) > 1), [])


def _letters_in(given: Any, options: Options) -> list[str]:
    if isinstance(given, str):
        together = _TOGETHER.fullmatch(given) is not None and not _is_text(given, options)
        given = items_in(given) or (re.findall("[A-Z]", given) if together else [])
    if not isinstance(given, list) or not all(map(_is_one, given)):
        return []
    letters = [_letter_of(one, options) for one in given]
    return sorted(letters) if all(letters) and len({*letters}) == len(letters) else []


def _shown_letters(letters: Sequence[str], options: Options, question: str) -> list[Any]:
    """Return the one answer that names several options. Raises Malformed where the question does
    not show them."""
    if _shows(question, options):
        return [", ".join(letters)]
    raise Malformed("several right options, which the question does not show")


# -- where options stand -----------------------------------------------------------------------


def options_of(record: Record) -> Options:
    """Return the options of a record, {} without any. Raises Malformed for some that are not
    understood, as they cannot be shown."""
    for key in OPTIONS:
        if found := _lettered(given := record.get(key)):
            return found
        if given and isinstance(given, list | str):
            raise Malformed(
                f"'{key}' that are not understood",
                f"'{key}' is no list of up to {len(ascii_uppercase)} texts: write one, or objects"
                " with 'label' and 'text'.",
            )
    place = _place_beside(record)
    return _lettered(record[place]) if place else {}


def _lettered(given: Any) -> Options:
    """Return the options from a list, also one that is written as text, from objects or columns of
    labels and texts, or by their letters; {} for anything else."""
    if isinstance(given, str):
        given = items_in(given) or value_in(given)
    while isinstance(given, list) and given and given[-1] is None:  # a table fills its rows up
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
    plain = all(re.fullmatch(r"\w", name) and _is_option(text) for name, text in found.items())
    return _without_letters(found) if plain else {}


def _without_letters(options: Options) -> Options:
    """Return the options without the letters that they all begin with, as in "A)21"."""
    found = {name: re.match(rf"\(?{name}[.):]\s*(?=\S)", str(o)) for name, o in options.items()}
    bare = {name: match.string[match.end() :] for name, match in found.items() if match}
    return bare if len(bare) == len(options) else options


def _place_beside(record: Record) -> str:
    """Return the key of several answers that are options, because another key names one of them by
    its place; "" without one."""
    for key, options in _several(record):
        letters = [one for one in _values(record, NAMED) if isinstance(one, str)]
        letters = [one for one in letters if not _is_text(one, options) and _LETTER.fullmatch(one)]
        letters = [one for one in letters if not one.isdecimal()]
        if any(_places(one, options) for one in [*letters, *_values(record, _PLACES)]):
            return key
    return ""


def _refuse_unclear_list(record: Record) -> None:
    """Raise Malformed for several answers of which another key repeats one, or may mean one by its
    number: they are options, or other names of the same."""
    for key, options in _several(record):
        for named in NAMED:
            one = record.get(named)
            if _is_one(one) and (_is_text(one, options) or _places(one, options)):
                raise Malformed(
                    f"several '{key}' and one '{named}', which are options or other names",
                    f"nobody can tell whether '{key}' holds options or other names of '{named}':"
                    f" call it 'options' if only '{named}' is right, and 'aliases' if all are.",
                )


def _several(record: Record) -> list[tuple[str, Options]]:
    """Return the lists of different answers that may be options, with their keys."""
    found = [(key, _lettered(record.get(key))) for key in MAYBE]
    if record.get("golden_answers"):
        return []
    return [(key, options) for key, options in found if len({*map(_plain, options.values())}) > 1]


# -- which option is meant ---------------------------------------------------------------------


def _letter_of(answer: Any, options: Options) -> str:
    """Return the letter of the option that an answer means by its text or its place, "" for none.
    Raises Malformed for one that may mean several."""
    same = [name for name, text in options.items() if _means(answer, name, text)]
    found = _distinct([*same, *_places(answer, options)])
    if len(found) > 1 and not _same_texts(found, options):
        raise Malformed(
            "an answer that may be several of its options",
            f"the answer {answer!r} may be the options {' and '.join(found)}: write the letter as"
            " 'answerKey'.",
        )
    return found[0] if found else _letter_at(answer, options)


def _letter_at(place: Any, options: Options) -> str:
    """Return the letter of the option at a place: a letter, or a number from 0. "" for what is no
    place. Raises Malformed for a number that may mean several options, or none."""
    if place == _WITHHELD:
        raise Malformed(
            "an answer that is withheld",
            "the answer -1 names no option, as in test sets without answers: give a file with"
            " them.",
        )
    found = _places(place, options)
    if len(found) > 1:
        raise Malformed("an answer that may be several of its options")
    if not found and isinstance(place, int):
        raise Malformed(
            "the number of a choice that is not there",
            f"there is no choice {place}; count from 0.",
        )
    return found[0] if found else ""


def _places(answer: Any, options: Options) -> list[str]:
    """Return the letters of options that an answer names, by the letter or by the number from 0."""
    letter = _LETTER.fullmatch(str(answer).strip())
    found = [name for name in options if letter and name.casefold() == letter[1].casefold()]
    if found and isinstance(answer, str) and found[0].isdecimal():
        return found  # a label of its own, as in ARC, and no place
    if isinstance(answer, int) or answer.strip().isdecimal():
        found += [*options][int(answer) : int(answer) + 1] if int(answer) >= 0 else []
    return _distinct(found)


def _means(answer: Any, name: str, text: Any) -> bool:
    """Tell whether an answer is the text of an option, maybe behind its letter. A number is no
    text."""
    if isinstance(answer, int) != isinstance(text, int):
        return False
    return _plain(re.sub(rf"^\s*\(?{name}[.):]\s*(?=\S)", "", str(answer))) == _plain(text)


def _shows(question: str, options: Options) -> bool:
    """Tell whether a question shows each option behind its letter."""
    return all(
        re.search(rf"(?<!\w){name}\W{{1,6}}{re.escape(str(text).strip())}", question)
        for name, text in options.items()
    )


def _is_text(answer: Any, options: Options) -> bool:
    return _plain(answer) in map(_plain, options.values())


def _same_texts(letters: Sequence[str], options: Options) -> bool:
    return len({_plain(options[letter]) for letter in letters}) == 1


def _values(record: Record, keys: Sequence[str]) -> list[Any]:
    return [record[key] for key in keys if _is_one(record.get(key))]


def _is_one(value: Any) -> bool:
    """Tell whether a value is one text or one whole number."""
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _is_option(value: Any) -> bool:
    return _is_one(value) or (isinstance(value, float) and value == value)


def _plain(value: Any) -> str:
    return str(value).strip().casefold()


def _distinct(letters: Sequence[str]) -> list[str]:
    return list(filter(None, dict.fromkeys(letters)))
