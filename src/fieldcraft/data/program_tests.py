"""Tests of programs as data sets keep them: objects or JSON texts, under keys of several names.

Eurus, APPS and TACO have {"inputs", "outputs"}, with `fn_name` for tests of a function;
PrimeIntellect, LiveCodeBench and rLLM a list of {"input", "output"}; Skywork {"entry_point",
"test_code"}, with an `import_prefix`; KodCode and others a list of assertions.

Judges of functions, as that of LeetCode, import the usual modules before a program, so programs
that are written for them do not. `prelude` of a task's `meta` is what is imported so.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.data.written import value_in
from fieldcraft.rewards.programs import PRELUDE, StdinTests, UnitTests

UNIT, STDIN = UnitTests.tests, StdinTests.tests
Meta = dict[str, Any]

_OWN_KEYS = (STDIN, UNIT, "tests", "test_cases", "test_list", "test", "input_output")
_KEYS = (*_OWN_KEYS, "verification_info", "ground_truth")
_INPUTS, _OUTPUTS = ("input", "stdin"), ("output", "expected_output", "stdout")  # of a case
_CALLS = ("functional", "function_call")  # kinds of cases that call a function
# Nothing here runs a program in one of these. `language` may also be that of a text.
_LANGUAGES = (
    *("c", "c++", "cpp", "c#", "csharp", "java", "javascript", "js", "typescript", "go", "rust"),
    *("ruby", "php", "kotlin", "swift", "scala", "perl", "lua", "julia", "haskell", "bash"),
)
_STARRED = ("typing", "collections", "itertools", "functools", "heapq", "bisect")
_WHOLE = ("bisect", "collections", "functools", "heapq", "itertools", "math", "random", "re")
JUDGES_IMPORTS = "".join(
    [f"from {name} import *\n" for name in _STARRED] + [f"import {name}\n" for name in _WHOLE]
)
_FUNCTION = """import json
_function = Solution().{name} if 'Solution' in globals() else {name}
assert json.loads(json.dumps(_function(*{arguments!r}))) in {accepted!r}"""


def tests_of(record: Mapping[str, Any]) -> Meta | None:
    """Return the tests in a record under any of the usual keys, for a task's `meta`; None without
    any. Raises ValueError for tests that are not understood."""
    refuse_other_language(record)
    reward = record.get("reward_model")
    given = [record[key] for key in _KEYS if key in record]
    given += [reward.get("ground_truth")] if isinstance(reward, dict) else []
    found = next((found for value in given if (found := tests_in(value)) is not None), None)
    if found is None and any(_looks_like_tests(record.get(key)) for key in _OWN_KEYS):
        raise ValueError("they have none of the forms that are read")
    return found


def refuse_other_language(described: Mapping[Any, Any]) -> None:
    """Raise ValueError for tests of programs that are not in Python."""
    named = str(described.get("language") or described.get("lang")).lower()
    if named in _LANGUAGES:
        raise ValueError(f"they are of programs in {named}")


def checked_by(test: str, name: str) -> str:
    """Return the test of HumanEval's form for the function `name`. Raises ValueError for one that
    is no Python, or that defines no function `check`."""
    if not any(isinstance(n, ast.FunctionDef) and n.name == "check" for n in _parsed(test).body):
        raise ValueError("no function 'check' is in them")
    return f"{test}\ncheck({name})"


def _parsed(test: str) -> ast.Module:
    try:
        return ast.parse(test)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("one of them is no Python") from error


def _looks_like_tests(given: Any) -> bool:
    """Tell whether a value that is not read must be tests, and no name or number of something."""
    if isinstance(given, str):
        return "assert" in given or value_in(given) not in (given, [], {})
    return isinstance(given, list | dict) and len(given) > 0


def tests_in(given: Any) -> Meta | None:
    """Return the tests that a value holds, or a text of JSON or Python; None for anything else.

    Raises ValueError for tests that nothing could run: whose inputs and outputs are not as many,
    or are no texts, and which are not for Python.
    """
    match value_in(given) if isinstance(given, str) else given:
        case {"inputs": list(inputs), "outputs": list(outputs), **more}:
            pairs = zip(inputs, outputs, strict=True)
            if name := more.get("fn_name"):
                tests = [_call(str(name), given, wanted) for given, wanted in pairs]
                return {UNIT: tests, PRELUDE: JUDGES_IMPORTS}
            return {STDIN: [stdin_test(text, wanted) for text, wanted in pairs]}
        case {"test_cases": list(cases), **more}:
            refuse_other_language(more)
            return tests_in(cases)
        case {"entry_point": str(name), "test_code": str(test), **more}:
            prelude = more.get("import_prefix")
            imports = {PRELUDE: prelude} if isinstance(prelude, str) and prelude.strip() else {}
            return {UNIT: [checked_by(test, name)], **imports}
        case [dict(), *_] as cases if all(_is_case(case) for case in cases):
            return _cases([_usual(case) for case in cases])
        case [str(), *_] as tests if all(_is_assertion(test) for test in tests):
            return {UNIT: [test for test in tests if _parsed(test)]}
        case str(text) if _asserts(text):
            return {UNIT: [text]}
    return None


def _is_case(case: Any) -> bool:
    return isinstance(case, dict) and "" not in (
        _first_of(_INPUTS, case),
        _first_of(_OUTPUTS, case),
    )


def _usual(case: Mapping[str, Any]) -> Mapping[str, Any]:
    given, wanted = case[_first_of(_INPUTS, case)], case[_first_of(_OUTPUTS, case)]
    return {**case, "input": given, "output": wanted}


def _first_of(keys: Sequence[str], case: Mapping[str, Any]) -> str:
    return next((key for key in keys if key in case), "")


def _asserts(text: str) -> bool:
    """Tell whether a text is a program of assertions, and not functions that a framework calls."""
    if "assert" not in text:
        return False
    try:
        return any(isinstance(node, ast.Assert) for node in _parsed(text).body)
    except ValueError:
        return False


def stdin_test(given: Any, wanted: Any) -> dict[str, str]:
    """Return a test of a program. Raises ValueError for anything but texts, or lists of their
    lines."""
    return {"input": _text(given), "output": _text(wanted)}


def function_test(name: str, arguments: list[Any], accepted: list[Any]) -> str:
    """Return a test that calls a function. What it returns is compared as JSON, where a tuple is a
    list. Raises ValueError for a name that is none."""
    if not all(map(str.isidentifier, name.split("."))):
        raise ValueError(f"the function is called {name!r}")
    return _FUNCTION.format(name=name, arguments=arguments, accepted=accepted)


def in_lines(text: str) -> list[Any]:
    """Return the values of a text with one in JSON a line."""
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _text(given: Any) -> str:
    match given:
        case str():
            return given
        case list() if all(isinstance(line, str) for line in given):
            return "\n".join(given)
    raise ValueError("an input or an output is no text")


def _is_assertion(test: Any) -> bool:
    return isinstance(test, str) and "assert" in test


def _cases(cases: Sequence[Mapping[str, Any]]) -> Meta:
    names = [name for case in cases if (name := _function_of(case))]
    if not names and any((case.get("testtype") or case.get("type")) in _CALLS for case in cases):
        raise ValueError("they call a function and do not name it")
    if not names:
        return {STDIN: [stdin_test(case["input"], case["output"]) for case in cases]}
    tests = [_call(names[0], case["input"], case["output"]) for case in cases]
    return {UNIT: tests, PRELUDE: JUDGES_IMPORTS}


def _function_of(case: Mapping[str, Any]) -> str | None:
    described = case.get("metadata")
    name = case.get("fn_name") or (described.get("func_name") if described else None)
    return name if isinstance(name, str) else None


def _call(name: str, given: Any, wanted: Any) -> str:
    """Return a test of a function. Data sets write what is wanted as it is, in JSON, or in a list
    of one."""
    arguments = in_lines(given) if isinstance(given, str) else given
    accepted = [wanted]
    if isinstance(wanted, list) and len(wanted) == 1:
        accepted += wanted
    if isinstance(wanted, str) and (decoded := _decoded(wanted)) is not None:
        accepted.append(decoded)
    return function_test(name, arguments if isinstance(arguments, list) else [arguments], accepted)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
