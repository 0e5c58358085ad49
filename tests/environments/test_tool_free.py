"""Rollouts of questions that are asked without tools."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import (
    ToolEnvironment,
    run_rollout,
    run_tool_free_rollout,
)
from fieldcraft.environments.turns import Policy
from fieldcraft.records.trajectories import from_json, to_json
from fieldcraft.rewards.answers import FormatPenaltyReward
from fieldcraft.types import AnyTool, Author, Status, Task, Tool, Trajectory
from training_parts import FixedTool

TOKENIZER = tiny_tokenizer()
TASK = Task("t", "Where was the director born?", ("Northport",))
SEARCH = "I need her.\n<begin_search> director </end_search>"
ANSWER = "So there.\n</think>\n\n\\boxed{Northport}"


def where(dialect: str = "autocoa", tool: AnyTool | None = None) -> ToolEnvironment:
    tools = [tool or FixedTool("found {}".format)]
    return ToolEnvironment(make_dialect(dialect, TOKENIZER, ""), tools, BudgetConfig())


def ask(turns: Sequence[str], env: ToolEnvironment) -> Trajectory:
    policy = Policy(engine=ScriptedEngine(TOKENIZER, turns))
    return asyncio.run(run_tool_free_rollout(TASK, policy, env, "key"))


def test_a_call_ends_it_without_an_answer_and_nothing_is_run() -> None:
    found = ask([SEARCH, ANSWER], where())
    assert [(s.author, s.text) for s in found.segments[1:]] == [(Author.POLICY, SEARCH)]
    assert (found.status, found.answer, found.calls) == (Status.NO_ANSWER, None, [])
    assert found.tool_free


def test_an_answer_counts_and_the_prompt_is_the_same() -> None:
    """A dialect whose prompt describes the tools describes them in these rollouts too."""
    for dialect, answer in (("autocoa", ANSWER), ("hermes", "Northport")):
        env = where(dialect)
        found = ask([answer], env)
        policy = Policy(engine=ScriptedEngine(TOKENIZER, [answer]))
        usual = asyncio.run(run_rollout(TASK, policy, env, "key"))
        assert [s.ids for s in found.segments] == [s.ids for s in usual.segments]
        assert (found.status, found.well_formed) == (Status.ANSWERED, usual.well_formed)
        assert (found.tool_free, usual.tool_free) == (True, False)


def test_a_tool_with_a_state_is_never_opened() -> None:
    class Opened:
        name = "search"
        schema = FixedTool("".format).schema

        @asynccontextmanager
        async def open(self, task: Task) -> AsyncIterator[Tool]:
            raise AssertionError("it was opened")
            yield

    found = ask([ANSWER], where(tool=Opened()))
    assert (found.status, found.error) == (Status.ANSWERED, "")


def test_the_record_says_so_and_is_as_before_where_there_are_tools() -> None:
    found = ask([SEARCH], where())
    assert from_json(to_json(found)) == found
    assert "tool_free" not in to_json(Trajectory(TASK))


def test_the_penalty_for_a_broken_form_spares_calls_that_found_no_tool() -> None:
    """The penalty does not depend on correctness, and elsewhere a call without tools is well
    formed.
    """
    broken = "\\boxed{Northport}"  # the thinking part is never closed
    group = [
        ask([ANSWER], where()),
        ask([SEARCH], where()),
        ask([broken], where()),
        Trajectory(TASK, well_formed=True),
        Trajectory(TASK),
    ]
    assert FormatPenaltyReward()(group) == [0.0, 0.0, 0.0, 0.0, -1.0]
    spoilt = ask(["So.\n</think> and </think>\n\n\\boxed{Northport}"], where())
    assert spoilt.answer is not None
    assert FormatPenaltyReward()([spoilt]) == [-1.0]
