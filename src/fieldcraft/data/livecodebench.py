"""LiveCodeBench's questions, whose private tests are text in a compressed pickle.

Unpickling can run arbitrary code, so the pickle is not loaded. Its opcodes are parsed instead, and
a pickle that contains more than text is rejected.
"""

from __future__ import annotations

import base64
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.data.program_tests import (
    JUDGE_IMPORTS,
    STDIN_TESTS_KEY,
    UNIT_TESTS_KEY,
    Metadata,
    make_function_test,
    make_stdin_test,
    parse_json_lines,
)
from fieldcraft.data.records import Record
from fieldcraft.rewards.programs import PRELUDE_KEY
from fieldcraft.types import UserError

RawTestCases = Sequence[Mapping[str, str]]  # with the keys input, output and testtype
MAX_TESTS_BYTES = 1 << 28  # of the private tests of a question, decompressed
_TEXT_OPCODES = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_FRAMING_OPCODES = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP")


def parse_livecodebench_question(record: Record) -> tuple[str, Metadata]:
    """Return the question and its tests, of programs that read their input, or of a function that
    continues the given code. Raises UserError, KeyError or ValueError for tests that cannot be
    read."""
    text: str = record["question_content"]
    cases = [
        *_parse_cases(record["public_test_cases"]),
        *_parse_cases(record.get("private_test_cases")),
    ]
    if not any(case["testtype"] == "functional" for case in cases):
        return text, {
            STDIN_TESTS_KEY: [make_stdin_test(case["input"], case["output"]) for case in cases]
        }
    metadata = record["metadata"]
    name = (json.loads(metadata) if isinstance(metadata, str) else metadata)["func_name"]
    question = f"{text.strip()}\n\nBegin with this code:\n\n{record['starter_code']}"
    tests = [_make_function_test(name, case) for case in cases]
    return question, {UNIT_TESTS_KEY: tests, PRELUDE_KEY: JUDGE_IMPORTS}


def _parse_cases(given: Any) -> RawTestCases:
    """Return the test cases of a list, of a JSON string, or of a compressed string."""
    if given in (None, ""):
        return []
    if not isinstance(given, str):
        cases: RawTestCases = given
        return cases
    text = given if given.lstrip().startswith("[") else _unpack_text(given)
    cases = json.loads(text)
    return cases


def _unpack_text(packed: str) -> str:
    """Return the text of a base64-encoded, compressed pickle."""
    decompressor = zlib.decompressobj()
    pickled = decompressor.decompress(base64.b64decode(packed, validate=True), MAX_TESTS_BYTES)
    if not decompressor.eof:
        raise UserError(
            "the private tests are cut short, or larger than 256 MiB; fetch the file again, or set"
            " private_test_cases to []."
        )
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in _TEXT_OPCODES:
            texts.append(str(argument))
        elif opcode.name not in _FRAMING_OPCODES:
            raise UserError(
                "the private tests are a pickle that contains more than text, and loading it can"
                " run any code: write them as a list in JSON, or set private_test_cases to []."
            )
    return "".join(texts)


def _make_function_test(name: str, case: Mapping[str, str]) -> str:
    """Return a test that calls the function. Each line of the input is a JSON argument."""
    return make_function_test(name, parse_json_lines(case["input"]), [json.loads(case["output"])])
