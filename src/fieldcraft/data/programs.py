"""Published questions that ask for a program, with the tests that check it.

HumanEval, MBPP, LiveCodeBench, KodCode and CodeContests each have their own fields;
`program_tests.py` reads the formats that other data sets share. `rewards/programs.py` describes how
the tests are used.
"""

from __future__ import annotations

import ast
import base64
import json
import pickletools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fieldcraft.data.gold_answers import QUESTION_KEYS
from fieldcraft.data.literals import parse_value
from fieldcraft.data.program_tests import (
    JUDGE_IMPORTS,
    STDIN_TESTS_KEY,
    UNIT_TESTS_KEY,
    Metadata,
    append_check_call,
    find_tests,
    make_function_test,
    make_stdin_test,
    parse_json_lines,
)
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


# -- LiveCodeBench -----------------------------------------------------------------------------

# The private tests are text in a compressed pickle. Unpickling can run arbitrary code, so the
# pickle is not loaded. Its opcodes are parsed instead, and a pickle that contains more than text is
# rejected.

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


# -- KodCode, whose tests are a pytest file, and CodeContests ----------------------------------

PROGRAM_MODULE = (
    "solution"  # the name under which pytest files import the program; here its names are global
)


def parse_kodcode_question(text: str, test: str, info: Any) -> tuple[str, Metadata]:
    """Return a question of KodCode with the declarations of its functions, which the tests call.
    Raises UserError or SyntaxError for tests that need pytest, which is not supported."""
    module = ast.parse(test)
    calls = "".join(f"{name}()\n" for name in _find_test_functions(module))
    if not calls:
        raise UserError("no function of the tests is called test_...; write them as 'unit_tests'.")
    listed = parse_value(info) if isinstance(info, str) else info
    functions = listed if isinstance(listed, list) else []
    declarations = [f.get("function_declaration") for f in functions if isinstance(f, Mapping)]
    declaration_text = "\n".join(filter(None, declarations))
    question = (
        f"{text.strip()}\n\nThe program must define:\n\n{declaration_text}"
        if declaration_text
        else text
    )
    tests = ast.unparse(ast.fix_missing_locations(_ProgramImportRemover(module).visit(module)))
    return question, {UNIT_TESTS_KEY: [f"{tests}\n\n{calls}"]}


class _ProgramImportRemover(ast.NodeTransformer):
    """Transformer that removes imports of the program, because the tests run in its namespace:
    `s.double` after `import solution as s` becomes `double`, and aliases of `from` are
    assigned."""

    def __init__(self, module: ast.Module) -> None:
        imports = [node for node in ast.walk(module) if isinstance(node, ast.Import)]
        named = [alias for node in imports for alias in node.names if alias.name == PROGRAM_MODULE]
        self._modules = {alias.asname or alias.name for alias in named}

    def visit_Import(self, node: ast.Import) -> ast.AST:
        others = [alias for alias in node.names if alias.name != PROGRAM_MODULE]
        return ast.Import(others) if others else ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.stmt]:
        if node.module != PROGRAM_MODULE:
            return node
        named = [f"{alias.asname} = {alias.name}" for alias in node.names if alias.asname]
        return ast.parse("\n".join(named) or "pass").body

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self._modules:
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._modules:
            raise UserError("the tests use the program as a module; write them as 'unit_tests'.")
        return node


def _find_test_functions(module: ast.Module) -> Iterator[str]:
    """Yield the names of the test functions."""
    for node in ast.walk(module):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        if any(name.split(".")[0] in ("pytest", "unittest") for name in names):
            raise UserError("the tests need pytest or unittest; write them as 'unit_tests'.")
    for statement in module.body:
        match statement:
            case ast.FunctionDef(name=name, args=ast.arguments(args=[])) if name.startswith("test"):
                yield name
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ) if name.lower().startswith("test"):
                raise UserError(f"only pytest runs '{name}'; write it as 'unit_tests'.")


def parse_code_contests_question(text: str, record: Mapping[str, Any]) -> tuple[str, Metadata]:
    """Return a question of CodeContests with its tests, public ones first. Raises UserError or
    ValueError for a question about a picture, and for programs that read and write files."""
    if "<image>" in text:
        raise UserError("the question is about a picture; remove the record.")
    if record.get("input_file") or record.get("output_file"):
        raise UserError("the program reads and writes files, which is not supported; remove it.")
    tests: list[dict[str, str]] = []
    for key in ("public_tests", "private_tests", "generated_tests"):
        if group := record.get(key):
            pairs = zip(group["input"], group["output"], strict=True)
            tests += [make_stdin_test(given, expected) for given, expected in pairs]
    return text, {STDIN_TESTS_KEY: tests}
