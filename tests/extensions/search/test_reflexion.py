"""Reflexion: trials, with feedback about the wrong ones."""

import asyncio

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.search.workflows import reflexion
from fieldcraft.tools.base import tool
from fieldcraft.types import Author, Status, Task, Trajectory

TOKENIZER = tiny_tokenizer()
DIALECT = make_dialect("autocoa", TOKENIZER, "")
TASK = Task("t", "Who?", ("Kalo",))


@tool
async def search(query: str) -> str:
    """Search.

    Args:
        query: what to look for.
    """
    return "something"


def answer(text: str) -> tuple[str, str]:
    """Return two turns: the single allowed call follows the first sentence."""
    return "</think>\n", f"\n\\boxed{{{text}}}"


def run_workflow(*turns: str, **budget: int) -> Trajectory:
    env = ToolEnvironment(DIALECT, [search], BudgetConfig(**budget))
    engine = ScriptedEngine(TOKENIZER, turns)
    return asyncio.run(reflexion(TASK, Policy(engine=engine), env, "key"))


def prompts(trajectory: Trajectory) -> list[str]:
    return [s.text for s in trajectory.segments if s.author is Author.PROMPT]


def test_a_right_first_trial_is_the_only_one() -> None:
    found = run_workflow(*answer("Kalo"), max_calls=1)
    assert (found.status, found.answer, found.well_formed) == (Status.ANSWERED, "Kalo", True)
    assert len(prompts(found)) == 1


def test_a_truncated_trial_is_reflected_on_as_well() -> None:
    """The reflection has tokens of its own: the trial has used up its budget."""
    turns = ("</think>\n", "b" * 60, "I wrote too much.\n", *answer("Kalo"))
    found = run_workflow(*turns, max_calls=1, max_turn_tokens=40, max_context_tokens=400)
    _, reflect, second = prompts(found)
    assert "was wrong" in reflect
    assert "Who? I wrote too much." in second
    assert (found.status, found.answer) == (Status.ANSWERED, "Kalo")


def test_a_wrong_trial_is_reflected_on_and_the_next_begins_with_that() -> None:
    found = run_workflow(*answer("Mira"), "I mistook the name.\n", *answer("Kalo"), max_calls=1)
    first, reflect, second = prompts(found)
    assert "wrong" not in first
    assert "Who? The answer Mira was wrong." in reflect
    assert "Who? I mistook the name." in second
    assert (found.answer, found.well_formed) == ("Kalo", True)
    assert len(found.calls) == 2  # of both trials


def test_three_wrong_trials_end_with_the_last_answer() -> None:
    turns = [*answer("A"), "Why?\n", *answer("B"), "Why?\n", *answer("C")]
    found = run_workflow(*turns, max_calls=1)
    assert (found.answer, len(found.calls), len(prompts(found))) == ("C", 3, 5)


def test_every_trial_has_a_whole_budget_and_a_truncated_one_is_not_the_end() -> None:
    found = run_workflow(
        "word " * 300, "Too long.\n", *answer("Kalo"), max_calls=1, max_turn_tokens=100
    )
    assert (found.status, found.answer) == (Status.ANSWERED, "Kalo")


def test_the_last_trial_decides_even_where_an_earlier_one_answered() -> None:
    found = run_workflow(*answer("A"), "Why?\n", *answer("B"), "Why?\n", "I give up", max_calls=1)
    assert (found.status, found.answer) == (Status.NO_ANSWER, None)
