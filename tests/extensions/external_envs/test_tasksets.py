"""A taskset of verifiers, run by verifiers in a separate Python.

FIELDCRAFT_VERIFIERS names the interpreter that has verifiers 0.4; without it, and without verifiers
in fieldcraft's Python, these tests are skipped.
"""

import asyncio
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from learning import TEMPLATE, learn, rises, trained_as_sampled

from bandit import letters
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.verifiers import VerifiersEnvironment
from fieldcraft.records.chains import validate_folds
from fieldcraft.types import Author, Status, Task, Trajectory, UserError

PYTHON = os.environ.get("FIELDCRAFT_VERIFIERS", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON and find_spec("verifiers") is None, reason="no verifiers"),
]
LIMITS = BudgetConfig(max_turn_tokens=4, max_context_tokens=40, max_calls=2)
END = "<end>"


@pytest.fixture(autouse=True)
def in_test_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the test folder, because the worker imports the taskset from the current folder."""
    monkeypatch.chdir(Path(__file__).parent)


def environment(mood: str = "good", **settings: Any) -> VerifiersEnvironment:
    config = {"taskset": {"mood": mood}}
    python = Path(PYTHON or sys.executable)
    return VerifiersEnvironment("partners_taskset", python, config=config, **settings)


def run_scripted(
    verifiers: VerifiersEnvironment, turns: list[str], *places: int
) -> list[Trajectory]:
    """Return the rollouts of a policy that writes these turns, for the tasks at these indices."""
    tokenizer = letters()
    tokenizer.chat_template = TEMPLATE
    policy = Policy(engine=ScriptedEngine(tokenizer, turns))
    tasks = [Task(str(place), "?", (), {"index": place}) for place in range(2)]

    async def all_of_them() -> list[Trajectory]:
        async with isolate_failures(verifiers, make_dialect("autocoa", tokenizer), LIMITS) as go:
            return await asyncio.gather(*(go.run(tasks[p], policy, f"k{p}") for p in places))

    return asyncio.run(all_of_them())


def test_the_last_tasks_are_to_test_on() -> None:
    train, test = environment().tasks(2)
    assert [task.question for task in train] == ["a", "b", "c", "d", "a", "b"]
    assert [task.meta["index"] for task in test] == [6, 7]
    assert len(environment().tasks(100)[1]) == 4


def test_a_taskset_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(UserError, match="the taskset cannot be read"):
        VerifiersEnvironment("no_taskset", Path(PYTHON or sys.executable)).tasks(0)


def test_a_trace_becomes_a_trajectory_token_for_token() -> None:
    [done] = run_scripted(environment(), ["0", "3"], 0)
    assert [(s.author, s.text) for s in done.segments] == [
        (Author.PROMPT, "a>"),
        (Author.POLICY, f"0{END}"),
        (Author.TOOL, "b>"),
        (Author.POLICY, f"3{END}"),
    ]
    assert [letters().decode(s.ids) for s in done.segments] == [s.text for s in done.segments]
    assert [s.logprobs for s in done.segments] == [[], [0.0, 0.0], [], [0.0, 0.0]]
    assert (done.status, done.answer, done.folds) == (Status.ANSWERED, "3", [])
    assert done.rewards == {"environment": 1.0}


def test_a_history_that_is_written_anew_is_another_chain() -> None:
    """Each turn is trained once."""
    [done] = run_scripted(environment("forgets"), ["0", "3"], 0)
    assert [(s.author, s.text) for s in done.segments] == [
        (Author.PROMPT, "a>"),
        (Author.POLICY, f"0{END}"),
        (Author.PROMPT, "b>"),
        (Author.POLICY, f"3{END}"),
    ]
    assert done.folds == [2]
    validate_folds(done)
    assert done.rewards == {"environment": 1.0}


def test_a_turn_that_is_cut_is_ended_by_the_template() -> None:
    [done] = run_scripted(environment(), ["0000", "3"], 0)
    assert [(s.author, s.text) for s in done.segments] == [
        (Author.PROMPT, "a>"),
        (Author.POLICY, "0000"),
        (Author.TOOL, f"{END}b>"),
        (Author.POLICY, f"3{END}"),
    ]
    assert (done.folds, done.status) == ([], Status.TRUNCATED)
    assert done.rewards == {"environment": 0.5}


@pytest.mark.parametrize(
    ("mood", "cause"),
    [
        ("raises", "no letters"),
        ("dead", "WorkerExitedError"),
        ("endless", "the episode did not end within"),
    ],
)
def test_what_goes_wrong_is_the_status_of_its_rollout(mood: str, cause: str) -> None:
    seconds = 90 if mood == "endless" else 600
    verifiers = environment(mood, timeout_seconds=seconds)
    good, bad = run_scripted(verifiers, ["0", "3"], 0, 1)
    assert bad.status is Status.ERROR
    assert cause in bad.error
    if mood != "dead":  # the worker's other rollouts fail with it
        assert good.rewards == {"environment": 1.0}


def test_a_worker_that_died_is_started_again() -> None:
    verifiers = environment("dead")
    tokenizer = letters()
    tokenizer.chat_template = TEMPLATE
    policy = Policy(engine=ScriptedEngine(tokenizer, ["0", "3"]))
    tasks = [Task(str(place), "?", (), {"index": place}) for place in range(2)]

    async def in_turn() -> list[Trajectory]:
        async with isolate_failures(verifiers, make_dialect("autocoa", tokenizer), LIMITS) as go:
            return [await go.run(tasks[p], policy, f"k{p}") for p in (1, 0)]

    dead, alive = asyncio.run(in_turn())
    assert dead.status is Status.ERROR
    assert alive.rewards == {"environment": 1.0}


def test_a_task_of_others_is_refused() -> None:
    async def foreign() -> None:
        tokenizer = letters()
        tokenizer.chat_template = TEMPLATE
        policy = Policy(engine=ScriptedEngine(tokenizer, []))
        async with isolate_failures(
            environment(), make_dialect("autocoa", tokenizer), LIMITS
        ) as go:
            await go.run(Task("q", "Who?", ()), policy, "k")

    with pytest.raises(UserError, match="does not belong to the taskset"):
        asyncio.run(foreign())


@pytest.mark.parametrize("seed", range(3))
def test_the_reward_rises(seed: int, tmp_path: Path) -> None:
    """As in text games, a truncated turn ends the game."""
    taskset = {"taskset": "partners_taskset", "config": {"taskset": {"mood": "strict"}}}
    choice = {"name": "verifiers", **taskset, **({"python": PYTHON} if PYTHON else {})}
    rows = learn(tmp_path, choice, seed)
    rises(rows, by=0.15)  # the same name for all letters earns 0.25, where seed 0 stops
    trained_as_sampled(rows)
