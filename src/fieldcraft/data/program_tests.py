"""Tests of programs in data sets: objects or JSON texts, under various keys.

Eurus, APPS and TACO have {"inputs", "outputs"}, with `fn_name` for tests of a function;
PrimeIntellect, LiveCodeBench and rLLM a list of {"input", "output"}; Skywork {"entry_point",
"test_code"}, with an `import_prefix`; KodCode and others a list of assertions.

Judges of functions, such as LeetCode's, import the usual modules before a program, so programs
written for them do not. `prelude` in a task's `meta` holds these imports.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.data.literals import parse_value
from fieldcraft.rewards.programs import PRELUDE_KEY, StdinTestReward, UnitTestReward

UNIT_TESTS_KEY, STDIN_TESTS_KEY = UnitTestReward.tests_key, StdinTestReward.tests_key
Metadata = dict[str, Any]

_TEST_KEYS = (
    STDIN_TESTS_KEY,
    UNIT_TESTS_KEY,
    "tests",
    "test_cases",
    "test_list",
    "test",
    "input_output",
)
_ALL_TEST_KEYS = (*_TEST_KEYS, "verification_info", "ground_truth")
_INPUT_KEYS, _OUTPUT_KEYS = ("input", "stdin"), ("output", "expected_output", "stdout")  # of a case
_CALL_TYPES = ("functional", "function_call")  # kinds of cases that call a function
# Unsupported programming languages. `language` may also be the language of a text.
_OTHER_LANGUAGES = (
    *("c", "c++", "cpp", "c#", "csharp", "java", "javascript", "js", "typescript", "go", "rust"),
    *("ruby", "php", "kotlin", "swift", "scala", "perl", "lua", "julia", "haskell", "bash"),
)
_STAR_IMPORTED_MODULES = ("typing", "collections", "itertools", "functools", "heapq", "bisect")
_IMPORTED_MODULES = (
    "bisect",
    "collections",
    "functools",
    "heapq",
    "itertools",
    "math",
    "random",
    "re",
)
JUDGE_IMPORTS = "".join(
    [f"from {name} import *\n" for name in _STAR_IMPORTED_MODULES]
    + [f"import {name}\n" for name in _IMPORTED_MODULES]
)
_FUNCTION_TEST_TEMPLATE = """import json
_function = Solution().{name} if 'Solution' in globals() else {name}
assert json.loads(json.dumps(_function(*{arguments!r}))) in {accepted!r}"""


def find_tests(record: Mapping[str, Any]) -> Metadata | None:
    """Return the tests of a record under any of the usual keys, for a task's `meta`, or None if it
    has none. Raises ValueError for tests that cannot be parsed."""
    require_python(record)
    reward = record.get("reward_model")
    values = [record[key] for key in _ALL_TEST_KEYS if key in record]
    values += [reward.get("ground_truth")] if isinstance(reward, dict) else []
    found = next((found for value in values if (found := parse_tests(value)) is not None), None)
    if found is None and any(_looks_like_tests(record.get(key)) for key in _TEST_KEYS):
        raise ValueError("they have none of the forms that are read")
    return found


def require_python(metadata: Mapping[Any, Any]) -> None:
    """Raise ValueError for tests of programs in other languages than Python."""
    language = str(metadata.get("language") or metadata.get("lang")).lower()
    if language in _OTHER_LANGUAGES:
        raise ValueError(f"they are of programs in {language}")


def append_check_call(test: str, name: str) -> str:
    """Return a HumanEval test that calls `check` with the function `name`. Raises ValueError if it
    is not Python, or defines no function `check`."""
    if not any(
        isinstance(n, ast.FunctionDef) and n.name == "check" for n in _parse_test(test).body
    ):
        raise ValueError("no function 'check' is in them")
    return f"{test}\ncheck({name})"


def _parse_test(test: str) -> ast.Module:
    try:
        return ast.parse(test)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("one of them is not Python") from error


def _looks_like_tests(given: Any) -> bool:
    """Return whether a value of unknown format must be tests, as opposed to a name or a number."""
    if isinstance(given, str):
        return "assert" in given or parse_value(given) not in (given, [], {})
    return isinstance(given, list | dict) and len(given) > 0


def parse_tests(given: Any) -> Metadata | None:
    """Return the tests of a value, or of a text in JSON or Python syntax, or None for other values.

    Raises ValueError for tests that cannot be run: with different numbers of inputs and outputs,
    with inputs or outputs that are not text, or not for Python.
    """
    match parse_value(given) if isinstance(given, str) else given:
        case {"inputs": list(inputs), "outputs": list(outputs), **more}:
            pairs = zip(inputs, outputs, strict=True)
            if name := more.get("fn_name"):
                tests = [_make_call_test(str(name), given, expected) for given, expected in pairs]
                return {UNIT_TESTS_KEY: tests, PRELUDE_KEY: JUDGE_IMPORTS}
            return {STDIN_TESTS_KEY: [make_stdin_test(text, expected) for text, expected in pairs]}
        case {"test_cases": list(cases), **more}:
            require_python(more)
            return parse_tests(cases)
        case {"entry_point": str(name), "test_code": str(test), **more}:
            prelude = more.get("import_prefix")
            imports = {PRELUDE_KEY: prelude} if isinstance(prelude, str) and prelude.strip() else {}
            return {UNIT_TESTS_KEY: [append_check_call(test, name)], **imports}
        case [dict(), *_] as cases if all(_is_case(case) for case in cases):
            return _parse_cases([_normalise_case(case) for case in cases])
        case [str(), *_] as tests if all(_is_assertion(test) for test in tests):
            return {UNIT_TESTS_KEY: [test for test in tests if _parse_test(test)]}
        case str(text) if _has_assertion(text):
            return {UNIT_TESTS_KEY: [text]}
    return None


def _is_case(case: Any) -> bool:
    return isinstance(case, dict) and "" not in (
        _find_first_key(_INPUT_KEYS, case),
        _find_first_key(_OUTPUT_KEYS, case),
    )


def _normalise_case(case: Mapping[str, Any]) -> Mapping[str, Any]:
    given, expected = (
        case[_find_first_key(_INPUT_KEYS, case)],
        case[_find_first_key(_OUTPUT_KEYS, case)],
    )
    return {**case, "input": given, "output": expected}


def _find_first_key(keys: Sequence[str], case: Mapping[str, Any]) -> str:
    return next((key for key in keys if key in case), "")


def _has_assertion(text: str) -> bool:
    """Return whether a text is a program of assertions, not of functions called by a framework."""
    if "assert" not in text:
        return False
    try:
        return any(isinstance(node, ast.Assert) for node in _parse_test(text).body)
    except ValueError:
        return False


def make_stdin_test(given: Any, expected: Any) -> dict[str, str]:
    """Return a test of a program. Raises ValueError for values other than texts and lists of
    lines."""
    return {"input": _join_lines(given), "output": _join_lines(expected)}


def make_function_test(name: str, arguments: list[Any], accepted: list[Any]) -> str:
    """Return a test that calls a function. The result is compared as JSON, so tuples equal lists.
    Raises ValueError if the name is not an identifier."""
    if not all(map(str.isidentifier, name.split("."))):
        raise ValueError(f"the function is called {name!r}")
    return _FUNCTION_TEST_TEMPLATE.format(name=name, arguments=arguments, accepted=accepted)


def parse_json_lines(text: str) -> list[Any]:
    """Return the values of a text with one JSON value per line."""
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _join_lines(given: Any) -> str:
    match given:
        case str():
            return given
        case list() if all(isinstance(line, str) for line in given):
            return "\n".join(given)
    raise ValueError("an input or an output is not text")


def _is_assertion(test: Any) -> bool:
    return isinstance(test, str) and "assert" in test


def _parse_cases(cases: Sequence[Mapping[str, Any]]) -> Metadata:
    names = [name for case in cases if (name := _get_function_name(case))]
    if not names and any(
        (case.get("testtype") or case.get("type")) in _CALL_TYPES for case in cases
    ):
        raise ValueError("they call a function and do not name it")
    if not names:
        return {STDIN_TESTS_KEY: [make_stdin_test(case["input"], case["output"]) for case in cases]}
    tests = [_make_call_test(names[0], case["input"], case["output"]) for case in cases]
    return {UNIT_TESTS_KEY: tests, PRELUDE_KEY: JUDGE_IMPORTS}


def _get_function_name(case: Mapping[str, Any]) -> str | None:
    metadata = case.get("metadata")
    name = case.get("fn_name") or (metadata.get("func_name") if metadata else None)
    return name if isinstance(name, str) else None


def _make_call_test(name: str, given: Any, expected: Any) -> str:
    """Return a test of a function. Data sets write the expected value directly, in JSON, or in a
    list with one item."""
    arguments = parse_json_lines(given) if isinstance(given, str) else given
    accepted = [expected]
    if isinstance(expected, list) and len(expected) == 1:
        accepted += expected
    if isinstance(expected, str) and (decoded := _decode_json(expected)) is not None:
        accepted.append(decoded)
    return make_function_test(
        name, arguments if isinstance(arguments, list) else [arguments], accepted
    )


def _decode_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
