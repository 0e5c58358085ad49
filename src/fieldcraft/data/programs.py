"""Questions that ask for a program, and the tests that check it, as others publish them.

HumanEval, MBPP, LiveCodeBench, KodCode and CodeContests each have fields of their own;
`program_tests.py` reads the tests that others share. `rewards/programs.py` says what the tests
become.
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
    """Return the question of a record and, for the task's `meta`, its tests; None for a record of
    another kind. The question is None where it stands as in other records.

    Raises RecordError where there are no tests, or they cannot be read.
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
        } if test.strip():  # of LeetCodeDataset, whose prompt is what its judge imports
            return question, {UNIT_TESTS_KEY: [append_check_call(test, name)], PRELUDE_KEY: prelude}
        case {"prompt": str(question), "entry_point": str(name), "test": str(test)}:
            return question, {
                UNIT_TESTS_KEY: [append_check_call(test, name)] if test.strip() else []
            }
        case {"text": str(text), "test_list": list(tests)}:
            return _parse_mbpp(text, tests, record.get("test_setup_code") or "")
        case {"prompt": str(text), "test_list": list(tests)}:  # of MBPP's sanitized part
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
    ):  # of APPS and TACO
        stated = str(first_filled(record, QUESTION_KEYS)).strip()
        return f"{stated}\n\nBegin with this code:\n\n{starter_code.strip()}", found
    return prompt if isinstance(prompt, str) else None, found


def _parse_mbpp(text: str, tests: Sequence[str], setup: str) -> tuple[str, Metadata]:
    """Return the question and its tests. The tests are part of the question: nothing else says what
    the function is called."""
    test_text = "\n".join(tests)
    question = f"{text.strip()}\n\nThe program must pass these tests:\n\n{test_text}"
    return question, {UNIT_TESTS_KEY: [f"{setup}\n{test}".lstrip("\n") for test in tests]}
