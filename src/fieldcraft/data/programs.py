"""Questions that ask for a program, and the tests that check it, as others publish them.

HumanEval, MBPP, LiveCodeBench and CodeContests each have fields of their own; `program_tests.py`
reads the tests that others share. `rewards/programs.py` says what the tests become.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.data.program_tests import (
    STDIN,
    UNIT,
    Meta,
    function_test,
    in_lines,
    stdin_test,
    tests_of,
)
from fieldcraft.data.records import Record
from fieldcraft.records.reading import reading
from fieldcraft.types import UserError

Cases = Sequence[Mapping[str, str]]  # LiveCodeBench's: input, output and testtype


def program_question(record: Record, where: str) -> tuple[str | None, Meta] | None:
    """The question of a record and, for the task's `meta`, its tests; None for a record of another
    kind. The question is None where it stands as in other records.

    Raises:
        UserError: there are no tests, or they cannot be read; `where` is in the sentence.
    """
    with reading(f"{where}: the list of tests", "correct it, or remove the record"):
        found = _of_any_kind(record, where)
    if found is not None and not any(found[1].values()):
        raise UserError(f"{where}: the question has no tests; add some, or remove the record.")
    return found


def _of_any_kind(record: Record, where: str) -> tuple[str | None, Meta] | None:
    match record:
        case {"prompt": str(question), "entry_point": str(name), "test": str(test)}:
            return question, {UNIT: [f"{test}\ncheck({name})"] if test.strip() else []}
        case {"text": str(text), "test_list": list(tests)}:
            return _mbpp(text, tests, record.get("test_setup_code") or "")
        case {"question_content": str(text), "public_test_cases": public}:
            cases = _cases(public, where) + _cases(record.get("private_test_cases"), where)
            return _livecodebench(text, cases, record)
    if (found := tests_of(record)) is None:
        return None
    prompt = record.get("prompt")
    return prompt if isinstance(prompt, str) else None, found


def _mbpp(text: str, tests: Sequence[str], setup: str) -> tuple[str, Meta]:
    """The tests are part of the question: nothing else says what the function is called."""
    shown = "\n".join(tests)
    question = f"{text.strip()}\n\nThe program must pass these tests:\n\n{shown}"
    return question, {UNIT: [f"{setup}\n{test}".lstrip("\n") for test in tests]}


# -- LiveCodeBench -----------------------------------------------------------------------------


def _cases(given: Any, where: str) -> list[Mapping[str, str]]:
    """The test cases in a list, or in a string of JSON."""
    if given in (None, ""):
        return []
    if isinstance(given, str) and not given.lstrip().startswith("["):
        raise UserError(
            f"{where}: the private tests are a compressed pickle, and loading a pickle can run any"
            " code: write them as a list in JSON, or set private_test_cases to []."
        )
    cases: list[Mapping[str, str]] = json.loads(given) if isinstance(given, str) else given
    return cases


def _livecodebench(text: str, cases: Cases, record: Record) -> tuple[str, Meta]:
    """Tests of programs that read their input, or of a function that the given code begins."""
    if not any(case["testtype"] == "functional" for case in cases):
        return text, {STDIN: [stdin_test(case["input"], case["output"]) for case in cases]}
    described = record["metadata"]
    name = (json.loads(described) if isinstance(described, str) else described)["func_name"]
    question = f"{text.strip()}\n\nBegin with this code:\n\n{record['starter_code']}"
    return question, {UNIT: [_functional_test(name, case) for case in cases]}


def _functional_test(name: str, case: Mapping[str, str]) -> str:
    """A call of the function. Every line of the input is an argument, in JSON."""
    return function_test(name, in_lines(case["input"]), [json.loads(case["output"])])
