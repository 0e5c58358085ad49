"""Questions that ask for a program, and the tests that check it, as others publish them.

HumanEval, MBPP, LiveCodeBench, KodCode and CodeContests each have fields of their own;
`program_tests.py` reads the tests that others share. `rewards/programs.py` says what the tests
become.
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.data.gold_answers import QUESTION
from fieldcraft.data.livecodebench import livecodebench_question
from fieldcraft.data.program_tests import STDIN, UNIT, Meta, checked_by, tests_of
from fieldcraft.data.published_programs import code_contests_question, kodcode_question
from fieldcraft.data.records import Malformed, Record, first
from fieldcraft.records.reading import reading
from fieldcraft.rewards.programs import PRELUDE
from fieldcraft.types import UserError


def program_question(record: Record) -> tuple[str | None, Meta] | None:
    """Return the question of a record and, for the task's `meta`, its tests; None for a record of
    another kind. The question is None where it stands as in other records.

    Raises Malformed where there are no tests, or they cannot be read.
    """
    try:
        with reading("the list of tests", "correct it, or remove the record"):
            found = _of_any_kind(record)
    except UserError as error:
        raise Malformed("tests that cannot be read", str(error)) from error
    if found is not None and not any(found[1].get(key) for key in (UNIT, STDIN)):
        raise Malformed("no tests", "the question has no tests; add some, or remove the record.")
    return found


def _of_any_kind(record: Record) -> tuple[str | None, Meta] | None:
    match record:
        case {
            "query": str(question),
            "prompt": str(prelude),
            "entry_point": str(name),
            "test": str(test),
        } if test.strip():  # of LeetCodeDataset, whose prompt is what its judge imports
            return question, {UNIT: [checked_by(test, name)], PRELUDE: prelude}
        case {"prompt": str(question), "entry_point": str(name), "test": str(test)}:
            return question, {UNIT: [checked_by(test, name)] if test.strip() else []}
        case {"text": str(text), "test_list": list(tests)}:
            return _mbpp(text, tests, record.get("test_setup_code") or "")
        case {"prompt": str(text), "test_list": list(tests)}:  # of MBPP's sanitized part
            return _mbpp(text, tests, "\n".join(record.get("test_imports") or ()))
        case {"question": str(text), "test": str(test), "test_info": _}:
            return kodcode_question(text, test, record["test_info"])
        case {"description": str(text), "public_tests": {"input": _, "output": _}}:
            return code_contests_question(text, record)
        case {"question_content": str(), "public_test_cases": _}:
            return livecodebench_question(record)
    if (found := tests_of(record)) is None:
        return None
    prompt, begun = record.get("prompt"), record.get("starter_code")
    if isinstance(begun, str) and begun.strip() and UNIT in found:  # of APPS and TACO
        asked = str(first(record, QUESTION)).strip()
        return f"{asked}\n\nBegin with this code:\n\n{begun.strip()}", found
    return prompt if isinstance(prompt, str) else None, found


def _mbpp(text: str, tests: Sequence[str], setup: str) -> tuple[str, Meta]:
    """Return the question and its tests. The tests are part of the question: nothing else says what
    the function is called."""
    shown = "\n".join(tests)
    question = f"{text.strip()}\n\nThe program must pass these tests:\n\n{shown}"
    return question, {UNIT: [f"{setup}\n{test}".lstrip("\n") for test in tests]}
