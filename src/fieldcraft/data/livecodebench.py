"""LiveCodeBench's questions, whose private tests are a text in a compressed pickle.

A pickle that is loaded may run any code, so none is: its instructions are read, and one that does
anything but hold a text is refused.
"""

from __future__ import annotations

import base64
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.data.program_tests import (
    JUDGES_IMPORTS,
    STDIN,
    UNIT,
    Meta,
    function_test,
    in_lines,
    stdin_test,
)
from fieldcraft.data.records import Record
from fieldcraft.rewards.programs import PRELUDE
from fieldcraft.types import UserError

Cases = Sequence[Mapping[str, str]]  # of input, output and testtype
MAX_TESTS_BYTES = 1 << 28  # of the private tests of a question, unpacked
_TEXT = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_AROUND = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP")


def livecodebench_question(record: Record) -> tuple[str, Meta]:
    """Return the question and its tests, of programs that read their input, or of a function that
    the given code begins. Raises UserError, KeyError or ValueError for tests that cannot be
    read."""
    text: str = record["question_content"]
    cases = [*_cases(record["public_test_cases"]), *_cases(record.get("private_test_cases"))]
    if not any(case["testtype"] == "functional" for case in cases):
        return text, {STDIN: [stdin_test(case["input"], case["output"]) for case in cases]}
    described = record["metadata"]
    name = (json.loads(described) if isinstance(described, str) else described)["func_name"]
    question = f"{text.strip()}\n\nBegin with this code:\n\n{record['starter_code']}"
    tests = [_functional_test(name, case) for case in cases]
    return question, {UNIT: tests, PRELUDE: JUDGES_IMPORTS}


def _cases(given: Any) -> Cases:
    """Return the test cases in a list, in a string of JSON, or in one that is packed."""
    if given in (None, ""):
        return []
    if not isinstance(given, str):
        cases: Cases = given
        return cases
    text = given if given.lstrip().startswith("[") else _unpacked(given)
    cases = json.loads(text)
    return cases


def _unpacked(packed: str) -> str:
    """Return the text in the base64 of a compressed pickle."""
    unpack = zlib.decompressobj()
    pickled = unpack.decompress(base64.b64decode(packed, validate=True), MAX_TESTS_BYTES)
    if not unpack.eof:
        raise UserError(
            "the private tests are cut short, or larger than 256 MiB; fetch the file again, or set"
            " private_test_cases to []."
        )
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in _TEXT:
            texts.append(str(argument))
        elif opcode.name not in _AROUND:
            raise UserError(
                "the private tests are a pickle that holds more than a text, and loading it can run"
                " any code: write them as a list in JSON, or set private_test_cases to []."
            )
    return "".join(texts)


def _functional_test(name: str, case: Mapping[str, str]) -> str:
    """Return a call of the function. Every line of the input is an argument, in JSON."""
    return function_test(name, in_lines(case["input"]), [json.loads(case["output"])])
