"""Workflows without a model, which give accepted answers that the search states."""

import asyncio

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.data.passages import Passage, format_passages
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.curation.ceilings import retrieval_ceiling, search_ceiling
from fieldcraft.runs.evaluating import Workflow
from fieldcraft.tools.base import tool
from fieldcraft.types import Author, Status, Task, Trajectory

TOKENIZER = tiny_tokenizer()
TASK = Task("t", "who founded Ironton?", ("the Gus Moe",))
PASSAGES = {
    TASK.question: Passage("1", "Ironton", "The founder is on the plaque of Rust Hall."),
    "Rust Hall": Passage("2", "Rust Hall", "The plaque names Gus Moe."),
}


@tool
async def search(query: str) -> str:
    """Search.

    Args:
        query: what to look for.
    """
    return format_passages([PASSAGES[query]] if query in PASSAGES else [])


def run_workflow(workflow: Workflow, dialect: str = "autocoa", max_calls: int = 2) -> Trajectory:
    budget = BudgetConfig(max_calls=max_calls)
    env = ToolEnvironment(make_dialect(dialect, TOKENIZER), [search], budget)
    policy = Policy(engine=ScriptedEngine(TOKENIZER, ["never sampled"]))
    return asyncio.run(workflow(TASK, policy, env, "key"))


def test_one_search_does_not_reach_the_answer() -> None:
    found = run_workflow(retrieval_ceiling)
    assert (found.status, found.answer) == (Status.NO_ANSWER, None)
    assert [call.arguments["query"] for call in found.calls] == [TASK.question]


def test_two_searches_do_and_failed_queries_are_no_calls() -> None:
    for dialect in ("autocoa", "hermes"):
        found = run_workflow(search_ceiling, dialect)
        assert (found.status, found.answer) == (Status.ANSWERED, "Gus Moe")
        assert [call.arguments["query"] for call in found.calls] == [TASK.question, "Rust Hall"]
        assert all(segment.author is not Author.POLICY for segment in found.segments)


def test_the_budget_limits_the_searches() -> None:
    found = run_workflow(search_ceiling, max_calls=1)
    assert (found.status, len(found.calls)) == (Status.NO_ANSWER, 1)
