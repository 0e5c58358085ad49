"""Worker that reads the questions of bfcl-eval and runs its checkers, in its interpreter.

It reads and writes lines of JSON.

The first line is {"categories": [...]}; the reply has the version of the package and the questions
of these categories. Each further line is a request with an `id`, and so is its reply:

    {"check": question, "calls": [...]}       one turn: {"valid", "error"}
    {"check": question, "turns": [[[...]]]}   several turns, each of steps of calls: the same
    {"execute": question, "steps": [[...]]}   {"results": [...]} of the calls of the last step

A call is [name, arguments]; the calls of one turn are null if they cannot be read. A request has no
state: it is answered by a child process that executes all steps from the start, and that the kernel
kills if it takes too long. The worker exits at the end of its input.

bfcl-eval has one table of all models of its leaderboard, which imports the client libraries of
their providers. Its checkers read one flag of it, so a table of one model replaces it.
"""

from __future__ import annotations

import json
import keyword
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

MODEL_NAME = "fieldcraft"  # without "_", which the checker replaces
REQUEST_SECONDS = 10  # of CPU time
REQUEST_WALL_SECONDS = 600  # for one that waits; a busy machine must not change a verdict
MAX_MEMORY_BYTES = 4 * 2**30  # bytes of address space
UNKNOWN_CALL = "undefined_function()"  # raises a NameError, as an unknown function does
Json = dict[str, Any]
Call = tuple[str, Json]


@dataclass(frozen=True)
class ModelFlags:
    """Entry of the table of models: dots in names of functions were replaced by underscores."""

    underscore_to_dot: bool = True


def import_package() -> None:
    """Import the parts of bfcl-eval that are needed, with a table of one model. The package writes
    lock files and empty folders, which go to a temporary folder."""
    table = ModuleType("bfcl_eval.constants.model_config")
    vars(table)["MODEL_CONFIG_MAPPING"] = {MODEL_NAME: ModelFlags()}
    sys.modules[table.__name__] = table
    for name in (
        "utils",
        "model_handler.utils",
        "eval_checker.ast_eval.ast_checker",
        "eval_checker.multi_turn_eval.multi_turn_checker",
        "eval_checker.multi_turn_eval.multi_turn_utils",
    ):
        import_module(f"bfcl_eval.{name}")


def get_module(name: str) -> Any:
    """Return an imported module of the package."""
    return sys.modules[f"bfcl_eval.{name}"]


# -- questions ---------------------------------------------------------------------------------


def read_questions(category: str) -> Iterator[Json]:
    """Yield the questions of a category, as a model gets them."""
    prompts = get_module("constants.default_prompts")
    for entry in get_module("utils").load_dataset_entry(category):
        added = entry.get("missed_function", {})
        request = prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
        follow_up = {"role": "user", "content": request}
        turns = [
            [follow_up] if str(number) in added else messages
            for number, messages in enumerate(entry["question"])
        ]
        yield {
            "id": entry["id"],
            "category": category,
            "turns": turns,
            "tools": convert_functions(entry["function"]),
            "added_tools": {turn: convert_functions(found) for turn, found in added.items()},
            "max_steps": prompts.MAXIMUM_STEP_LIMIT,
        }


def convert_functions(functions: list[Json]) -> list[Json]:
    """Return functions as JSON schemas, converted by the package."""
    tools: list[Json] = get_module("model_handler.utils").convert_to_tool(
        functions,
        get_module("constants.type_mappings").GORILLA_TO_OPENAPI,
        get_module("constants.enums").ModelStyle.OPENAI_COMPLETIONS,
    )
    return tools


@lru_cache
def load_entries(category: str) -> dict[str, tuple[Json, Any]]:
    """Return the entries of a category by id, as the checkers get them, with their answers. Both
    files have the same order; some answers have other ids."""
    utils = get_module("utils")
    entries = utils.load_dataset_entry(category, include_language_specific_hint=False)
    if utils.is_relevance_or_irrelevance(category):
        return {entry["id"]: (entry, None) for entry in entries}
    answers = utils.load_ground_truth_entry(category)
    import_simulators({name for entry in entries for name in entry.get("involved_classes", ())})
    pairs = zip(entries, answers, strict=True)
    return {entry["id"]: (entry, answer["ground_truth"]) for entry, answer in pairs}


def import_simulators(names: Collection[str]) -> None:
    """Import the classes whose methods conversations call, once for all child processes."""
    files = get_module("constants.executable_backend_config").CLASS_FILE_PATH_MAPPING
    for name in sorted(names):
        import_module(files[name])


def find_entry(question: str) -> tuple[str, Json, Any]:
    """Return category, entry and answers of a question."""
    category = get_module("utils").extract_test_category_from_id(question)
    return (category, *load_entries(category)[question])


# -- checkers ----------------------------------------------------------------------------------


def check_calls(question: str, calls: Sequence[Call] | None) -> Json:
    """Check the calls of a question with one turn."""
    category, entry, answers = find_entry(question)
    utils = get_module("utils")
    decoded = None if calls is None else [{name: arguments} for name, arguments in calls]
    if utils.is_relevance_or_irrelevance(category):
        if utils.is_empty_output(decoded) == ("irrelevance" in category):
            return {"valid": True, "error": ""}
        error = "no function was called" if decoded in (None, []) else "no function was needed"
        return {"valid": False, "error": error}
    if decoded is None or not utils.is_function_calling_format_output(decoded):
        return {"valid": False, "error": "the calls cannot be read"}
    verdict = get_module("eval_checker.ast_eval.ast_checker").ast_checker(
        entry["function"], decoded, answers, find_language(category), category, MODEL_NAME
    )
    return make_verdict(verdict["valid"], verdict.get("error"))


def find_language(category: str) -> Any:
    """Return the language whose values the arguments of a category are."""
    utils, language = get_module("utils"), get_module("constants.enums").Language
    if utils.is_java(category):
        return language.JAVA
    return language.JAVASCRIPT if utils.is_js(category) else language.PYTHON


def make_verdict(is_valid: bool, error: Any) -> Json:
    text = error if isinstance(error, str) else json.dumps(error, default=str)
    return {"valid": bool(is_valid), "error": "" if is_valid else text[:500]}


def check_turns(question: str, turns: Sequence[Sequence[Sequence[Call]]]) -> Json:
    """Check a conversation: state and results after each of its turns."""
    category, entry, answers = find_entry(question)
    if len(turns) != len(answers):
        return {"valid": False, "error": "the conversation ended before its last turn"}
    decoded = [[render_calls(step, entry) for step in turn if step] for turn in turns]
    checker = get_module("eval_checker.multi_turn_eval.multi_turn_checker")
    verdict = checker.multi_turn_checker(decoded, answers, entry, category, MODEL_NAME)
    return make_verdict(verdict["valid"], verdict.get("error_message", ""))


def execute_steps(question: str, steps: Sequence[Sequence[Call]]) -> Json:
    """Execute the calls of all steps so far, and return the results of the last one."""
    category, entry, _ = find_entry(question)
    results: list[str] = []
    for step in steps:
        results, _ = get_module(
            "eval_checker.multi_turn_eval.multi_turn_utils"
        ).execute_multi_turn_func_call(
            render_calls(step, entry),
            entry["initial_config"],
            entry["involved_classes"],
            MODEL_NAME,
            question,
            long_context="long_context" in category,
            is_evaL_run=False,
        )
    unknown = [name for name, _ in steps[-1]]
    return {
        "results": [
            result.replace(UNKNOWN_CALL.removesuffix("()"), name)
            for name, result in zip(unknown, results, strict=True)
        ]
    }


def render_calls(calls: Sequence[Call], entry: Json) -> list[str]:
    """Return calls as Python expressions, which the package evaluates. A name is therefore that of
    a function of the question, arguments have plain names, and values are literals."""
    known = {function["name"] for function in entry["function"]}
    for functions in entry.get("missed_function", {}).values():
        known |= {function["name"] for function in functions}
    render = get_module("model_handler.utils").convert_to_function_call
    return [
        render([{name: arguments}])[0]
        if name in known and all(map(is_plain_name, arguments))
        else UNKNOWN_CALL
        for name, arguments in calls
    ]


def is_plain_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


# -- requests ----------------------------------------------------------------------------------


def answer(request: Json) -> Json:
    """Return the reply to a request, computed in this process."""
    if "execute" in request:
        return execute_steps(request["execute"], request["steps"])
    if "turns" in request:
        return check_turns(request["check"], request["turns"])
    return check_calls(request["check"], request["calls"])


def answer_in_child(request: Json) -> Json:
    """Return the reply to a request, computed in a child process with limits."""
    load_entries(get_module("utils").extract_test_category_from_id(find_question(request)))
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        os.close(receiver)
        run_child(lambda: answer(request), sender)
    os.close(sender)
    with os.fdopen(receiver, encoding="utf-8") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    if text.endswith("\n"):
        reply: Json = json.loads(text)
        return reply
    if "execute" in request:
        lost = "Error during execution: the call took too much time or memory"
        return {"results": [lost for _ in request["steps"][-1]]}
    return {"valid": False, "error": "the check took too much time or memory"}


def find_question(request: Json) -> str:
    question: str = request.get("execute") or request["check"]
    return question


def run_child(work: Callable[[], Json], sender: int) -> None:
    """Write the reply of a function, and exit. An exception of a checker is a failed check, as the
    values that a model writes may be of any type."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (REQUEST_SECONDS, REQUEST_SECONDS))
    signal.alarm(REQUEST_WALL_SECONDS)
    status = 1
    try:
        try:
            reply = work()
        except Exception as error:  # noqa: BLE001 - of code of others, on any values
            reply = {"valid": False, "results": [], "error": f"{type(error).__name__}: {error}"}
        with os.fdopen(sender, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(reply) + "\n")
        status = 0
    finally:
        os._exit(status)


def main() -> None:
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries is not part of a reply

    def write(message: Json) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    handshake = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BFCL_PROJECT_ROOT"] = folder
        import_package()
        found = [q for category in handshake["categories"] for q in read_questions(category)]
        write({"version": version("bfcl-eval"), "questions": found})
        for line in sys.stdin:
            request = json.loads(line)
            if "cancel" not in request:
                write({"id": request["id"], **answer_in_child(request)})


if __name__ == "__main__":
    main()
