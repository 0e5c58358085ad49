"""Questions of the Berkeley Function Calling Leaderboard, read from the package bfcl-eval.

The package pins versions of numpy and of many client libraries, so it is installed for another
Python interpreter. `worker/bfcl_worker.py` runs in that one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fieldcraft.config.interpreters import get_installed_version
from fieldcraft.config.names import suggest_name
from fieldcraft.records.paths import expand_home
from fieldcraft.types import UserError

WORKER_SCRIPT = Path(__file__).parents[1] / "worker" / "bfcl_worker.py"
TESTED_VERSION = "2026.3.23"
SINGLE_TURN_CATEGORIES = (
    *("simple_python", "simple_java", "simple_javascript"),
    *("multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    *("live_irrelevance", "live_relevance"),
)
MULTI_TURN_CATEGORIES = (
    *("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param"),
    "multi_turn_long_context",
)
MEMORY_CATEGORIES = ("memory_kv", "memory_rec_sum")
GROUPS = (SINGLE_TURN_CATEGORIES, MULTI_TURN_CATEGORIES, MEMORY_CATEGORIES)
CATEGORIES = SINGLE_TURN_CATEGORIES + MULTI_TURN_CATEGORIES + MEMORY_CATEGORIES
REFUSED_CATEGORIES = {
    "memory_vector": "its memory downloads an embedding model when it is loaded",
}
Schema = dict[str, Any]
Message = Mapping[str, str]


@dataclass(frozen=True)
class BfclQuestion:
    """A question, or a conversation of several turns.

    Attributes:
        turns: messages of the user in each turn; the first turn may have other roles, too.
        tools: JSON schemas of its functions.
        added_tools: functions that a later turn adds, by the number of the turn.
        max_steps: maximum number of the model's messages with calls in one turn.
        depends_on: conversations that write the memory before it, in their order.
        scenario: questions of one scenario read the same memory; "" without one.
    """

    id: str
    category: str
    turns: Sequence[Sequence[Message]]
    tools: Sequence[Schema]
    added_tools: Mapping[int, Sequence[Schema]]
    max_steps: int
    depends_on: Sequence[str]
    scenario: str

    @property
    def has_one_turn(self) -> bool:
        """Return whether the model's first message is its answer, so that no call is executed."""
        return self.category in SINGLE_TURN_CATEGORIES

    @property
    def text(self) -> str:
        """First request of the user."""
        return next(m["content"] for m in reversed(self.turns[0]) if m["role"] == "user")


def parse_question(record: Mapping[str, Any]) -> BfclQuestion:
    """Return the question of a record of the worker."""
    added = {int(number): tools for number, tools in record["added_tools"].items()}
    return BfclQuestion(**{**record, "added_tools": added})


def require_categories(names: Sequence[str]) -> None:
    """Raise UserError for an unknown category, for one that is not offered, and for none."""
    for name in names:
        if name in REFUSED_CATEGORIES:
            raise UserError(
                f"the category '{name}' of BFCL is not offered, because {REFUSED_CATEGORIES[name]}:"
                f" use {' or '.join(MEMORY_CATEGORIES)}."
            )
        if name not in CATEGORIES:
            raise UserError(f"BFCL has no category '{name}': {suggest_name(name, CATEGORIES)}")
    if not names:
        raise UserError(f"BFCL needs categories: set some of {', '.join(CATEGORIES)}.")


def list_questions(python: Path | None, categories: Sequence[str]) -> list[BfclQuestion]:
    """Return the questions of categories, in order. Raises UserError if the package is missing or
    cannot be read."""
    interpreter = resolve_interpreter(python)
    found: list[BfclQuestion] = []
    for group in GROUPS:
        if wanted := [name for name in group if name in categories]:
            questions = _read_group(interpreter, group)
            found += [question for name in wanted for question in questions[name]]
    return found


def describe_package(python: Path | None) -> str:
    """Return the name and the version of the package. Raises UserError if it is missing."""
    return f"bfcl-eval {_find_version(resolve_interpreter(python))}"


def resolve_interpreter(python: Path | None) -> str:
    """Return the interpreter that has the package. Raises UserError if it has not, or does not
    run."""
    interpreter = str(expand_home(python) if python else sys.executable)
    if not _find_version(interpreter):
        raise UserError(
            f"{interpreter} has no bfcl-eval, which does not fit beside fieldcraft: run 'python -m"
            f" venv /envs/bfcl' and '/envs/bfcl/bin/pip install bfcl-eval=={TESTED_VERSION}', then"
            " give --python /envs/bfcl/bin/python (environment.python in a recipe)."
        )
    return interpreter


@lru_cache(maxsize=8)
def _find_version(interpreter: str) -> str:
    return get_installed_version(interpreter, "bfcl_eval", "environment.python")


@lru_cache(maxsize=8)  # a suite has a benchmark for each category
def _read_group(
    interpreter: str, categories: tuple[str, ...]
) -> Mapping[str, Sequence[BfclQuestion]]:
    """Return the questions of all categories of a group."""
    process = subprocess.run(
        [interpreter, str(WORKER_SCRIPT)],
        input=json.dumps({"categories": categories}) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if not process.stdout:
        lines = process.stderr.strip().splitlines() or ["it printed nothing"]
        raise UserError(
            f"bfcl-eval of {interpreter} cannot be used ({lines[-1][:200]}): install all that it"
            f" requires, in the version {TESTED_VERSION}."
        )
    questions = [parse_question(record) for record in json.loads(process.stdout)["questions"]]
    return {name: [q for q in questions if q.category == name] for name in categories}
