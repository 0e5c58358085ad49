"""Worker that reads the questions of bfcl-eval and runs its checkers, in its interpreter.

It reads and writes lines of JSON.

The first line is {"categories": [...]}; the reply has the version of the package and the questions
of these categories. Each further line is a request with an `id`, and so is its reply:

    {"check": question, "calls": [...]}       one turn: {"valid", "error"}
    {"check": question, "turns": [[[...]]]}   several turns, each of steps of calls: the same
    {"execute": question, "steps": [[...]]}   {"results": [...]} of the calls of the last step
    {"open": question}                        {"messages": [...]} that begin a memory conversation
    {"store": question, "steps": [[...]]}     {"memory": ...} after the calls of a conversation
    {"check": question, "answer": text}       last message about a memory: {"valid", "error"}

Requests about a memory also have the `memory` that the conversation begins with, null for none.

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
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

MODEL_NAME = "fieldcraft"  # without "_", which the checker replaces
REQUEST_SECONDS = 10  # of CPU time
REQUEST_WALL_SECONDS = 600  # for one that waits; a busy machine must not change a verdict
MAX_MEMORY_BYTES = 4 * 2**30  # bytes of address space
MAX_STORED_CHARACTERS = 2**20  # replacing an empty text multiplies a memory without limit
UNKNOWN_CALL = "undefined_function()"  # raises a NameError, as an unknown function does
REQUEST_KINDS = ("check", "execute", "open", "store")
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
        "eval_checker.agentic_eval.agentic_checker",
        "eval_checker.multi_turn_eval.multi_turn_checker",
        "eval_checker.multi_turn_eval.multi_turn_utils",
    ):
        import_module(f"bfcl_eval.{name}")


def get_module(name: str) -> Any:
    """Return an imported module of the package."""
    return sys.modules[f"bfcl_eval.{name}"]


# -- questions ---------------------------------------------------------------------------------


def read_questions(category: str) -> Iterator[Json]:
    """Yield the questions of a category, as a model gets them, and the conversations that some of
    them depend on, in a category of their own."""
    prompts, utils = get_module("constants.default_prompts"), get_module("utils")
    entries = utils.load_dataset_entry(category)
    if utils.is_memory(category):
        load_entries(category)  # raises for a missing package before a model is asked
        entries.sort(key=find_place_in_scenario)
    for entry in entries:
        added = entry.get("missed_function", {})
        request = prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
        follow_up = {"role": "user", "content": request}
        turns = [
            [follow_up] if str(number) in added else messages
            for number, messages in enumerate(entry["question"])
        ]
        yield {
            "id": entry["id"],
            "category": utils.extract_test_category_from_id(entry["id"]),
            "turns": turns,
            "tools": convert_functions(entry["function"]),
            "added_tools": {turn: convert_functions(found) for turn, found in added.items()},
            "max_steps": prompts.MAXIMUM_STEP_LIMIT,
            "depends_on": entry.get("depends_on", []),
            "scenario": entry.get("scenario", ""),
        }


def find_place_in_scenario(entry: Json) -> int:
    """Return the number of a question among those of its scenario. In this order, the memories of
    all scenarios are written at the same time."""
    return int(entry["id"].rpartition("-")[2])


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
    found: dict[str, tuple[Json, Any]] = {entry["id"]: (entry, None) for entry in entries}
    if utils.is_relevance_or_irrelevance(category):
        return found
    answers = utils.load_ground_truth_entry(category)
    import_simulators({name for entry in entries for name in entry.get("involved_classes", ())})
    questions = [entry for entry in entries if not utils.is_memory_prereq(entry["id"])]
    pairs = zip(questions, answers, strict=True)
    return found | {entry["id"]: (entry, answer["ground_truth"]) for entry, answer in pairs}


def import_simulators(names: Collection[str]) -> None:
    """Import the classes whose methods conversations call, once for all child processes."""
    files = get_module("constants.executable_backend_config").CLASS_FILE_PATH_MAPPING
    for name in sorted(names):
        import_module(files[name])


def find_entry(question: str) -> tuple[str, Json, Any]:
    """Return category, entry and answers of a question. Conversations that questions depend on are
    in the category of these questions."""
    category = get_module("utils").extract_test_category_from_id(question, remove_prereq=True)
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
    results: list[str] = []
    for step in steps:
        results, _ = execute_calls(question, step)
    unknown = [name for name, _ in steps[-1]]
    return {
        "results": [
            result.replace(UNKNOWN_CALL.removesuffix("()"), name)
            for name, result in zip(unknown, results, strict=True)
        ]
    }


def execute_calls(question: str, calls: Sequence[Call]) -> tuple[list[str], Json]:
    """Execute calls. Return their results and the simulators, which stay until this process
    exits."""
    category, entry, _ = find_entry(question)
    utils = get_module("eval_checker.multi_turn_eval.multi_turn_utils")
    results, simulators = utils.execute_multi_turn_func_call(
        render_calls(calls, entry),
        entry["initial_config"],
        entry["involved_classes"],
        MODEL_NAME,
        question,
        long_context="long_context" in category,
        is_evaL_run=False,
    )
    return results, simulators


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


# -- memories ----------------------------------------------------------------------------------


@contextmanager
def open_memory(question: str, memory: Json | None) -> Iterator[Any]:
    """Load a memory into the simulator of a question, and yield it. The package keeps memories in
    files."""
    _, entry, _ = find_entry(question)
    with tempfile.TemporaryDirectory(dir=os.environ["BFCL_PROJECT_ROOT"]) as folder:
        get_module("utils").populate_initial_settings_for_memory_test_cases([entry], Path(folder))
        with redirect_stdout(StringIO()):  # a warning that there is no file yet
            _, simulators = execute_calls(question, [])
        [(name, simulator)] = simulators.items()
        if memory is not None:
            simulator.latest_snapshot_file.write_text(json.dumps(memory))
            simulator._load_scenario(entry["initial_config"][name])
        yield simulator


def begin_conversation(question: str, memory: Json | None) -> Json:
    """Return the messages of the first turn, with what the package tells of the memory."""
    category, entry, _ = find_entry(question)
    with open_memory(question, memory) as simulator:
        turns = get_module("model_handler.utils").add_memory_instruction_system_prompt(
            entry["question"], category, entry["scenario"], simulator
        )
    return {"messages": turns[0]}


def store_memory(question: str, steps: Sequence[Sequence[Call]], memory: Json | None) -> Json:
    """Return the memory after the calls of a conversation. A conversation that makes it too large
    has changed nothing."""
    with open_memory(question, memory) as simulator:
        for step in steps:
            execute_calls(question, step)
        simulator._flush_memory_to_local_file()
        text = simulator.latest_snapshot_file.read_text()
    return {"memory": memory if len(text) > MAX_STORED_CHARACTERS else json.loads(text)}


def check_answer(question: str, answer: str) -> Json:
    """Check the last message of a conversation about a memory."""
    _, _, accepted = find_entry(question)
    checker = get_module("eval_checker.agentic_eval.agentic_checker")
    verdict = checker.agentic_checker(answer, accepted)
    return make_verdict(verdict["valid"], verdict.get("error_message", ""))


# -- requests ----------------------------------------------------------------------------------


def answer(request: Json) -> Json:
    """Return the reply to a request, computed in this process."""
    question, memory = find_question(request), request.get("memory")
    if "open" in request:
        return begin_conversation(question, memory)
    if "store" in request:
        return store_memory(question, request["steps"], memory)
    if "execute" in request and "memory" in request:
        with open_memory(question, memory):
            return execute_steps(question, request["steps"])
    if "execute" in request:
        return execute_steps(question, request["steps"])
    if "answer" in request:
        return check_answer(question, request["answer"])
    if "turns" in request:
        return check_turns(question, request["turns"])
    return check_calls(question, request["calls"])


def answer_in_child(request: Json) -> Json:
    """Return the reply to a request, computed in a child process with limits."""
    find_entry(find_question(request))  # read once for all child processes
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
    if "store" in request:
        return {"memory": request["memory"]}
    return {"valid": False, "error": "the check took too much time or memory"}


def find_question(request: Json) -> str:
    [question] = (request[kind] for kind in REQUEST_KINDS if kind in request)
    return str(question)


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
