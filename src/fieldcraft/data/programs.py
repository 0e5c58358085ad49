"""Published questions that ask for a program, with the tests that check it.

HumanEval, MBPP, LiveCodeBench, KodCode and CodeContests each have their own fields;
`program_tests.py` reads the formats that other data sets share. `rewards/programs.py` describes how
the tests are used.
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.data.gold_answers import QUESTION_KEYS
from fieldcraft.data.livecodebench import parse_livecodebench_question
from fieldcraft.data.program_tests import (
    STDIN_TESTS_KEY,
    UNIT_TESTS_KEY,
    Metadata,
    append_check_call,
    find_tests,
)
from fieldcraft.data.published_programs import parse_code_contests_question, parse_kodcode_question
from fieldcraft.data.records import Record, RecordError, first_filled
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.rewards.programs import PRELUDE_KEY
from fieldcraft.types import UserError


def parse_program_question(record: Record) -> tuple[str | None, Metadata] | None:
    """Return the question of a record and, for the task's `meta`, its tests, or None for a record
    of another kind. The question is None if it is stored as in other records.

    Raises RecordError if tests are missing or cannot be read.
    """
    try:
        with raise_read_errors("the list of tests", "correct it, or remove the record"):
            found = _parse_any_kind(record)
    except UserError as error:
        raise RecordError("tests that cannot be read", str(error)) from error
    if found is not None and not any(
        found[1].get(key) for key in (UNIT_TESTS_KEY, STDIN_TESTS_KEY)
    ):
        raise RecordError("no tests", "the question has no tests; add some, or remove the record.")
    return found


def _parse_any_kind(record: Record) -> tuple[str | None, Metadata] | None:
    match record:
        case {
            "query": str(question),
            "prompt": str(prelude),
            "entry_point": str(name),
            "test": str(test),
        } if test.strip():  # LeetCodeDataset, whose prompt holds the imports of its judge
            return question, {UNIT_TESTS_KEY: [append_check_call(test, name)], PRELUDE_KEY: prelude}
        case {"prompt": str(question), "entry_point": str(name), "test": str(test)}:
            return question, {
                UNIT_TESTS_KEY: [append_check_call(test, name)] if test.strip() else []
            }
        case {"text": str(text), "test_list": list(tests)}:
            return _parse_mbpp(text, tests, record.get("test_setup_code") or "")
        case {"prompt": str(text), "test_list": list(tests)}:  # sanitized MBPP
            return _parse_mbpp(text, tests, "\n".join(record.get("test_imports") or ()))
        case {"question": str(text), "test": str(test), "test_info": _}:
            return parse_kodcode_question(text, test, record["test_info"])
        case {"description": str(text), "public_tests": {"input": _, "output": _}}:
            return parse_code_contests_question(text, record)
        case {"question_content": str(), "public_test_cases": _}:
            return parse_livecodebench_question(record)
    if (found := find_tests(record)) is None:
        return None
    prompt, starter_code = record.get("prompt"), record.get("starter_code")
    if (
        isinstance(starter_code, str) and starter_code.strip() and UNIT_TESTS_KEY in found
    ):  # APPS and TACO
        stated = str(first_filled(record, QUESTION_KEYS)).strip()
        return f"{stated}\n\nBegin with this code:\n\n{starter_code.strip()}", found
    return prompt if isinstance(prompt, str) else None, found


def _parse_mbpp(text: str, tests: Sequence[str], setup: str) -> tuple[str, Metadata]:
    """Return the question and its tests. The tests are part of the question, because only they
    name the function."""
    test_text = "\n".join(tests)
    question = f"{text.strip()}\n\nThe program must pass these tests:\n\n{test_text}"
    return question, {UNIT_TESTS_KEY: [f"{setup}\n{test}".lstrip("\n") for test in tests]}
