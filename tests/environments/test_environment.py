"""Results of calls, for any text of the policy and any behaviour of the tool."""

import asyncio
import re

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.environments.guards import BrokenToolError
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.tool_session import LIMIT_REACHED_MESSAGE
from fieldcraft.tools.base import tool
from fieldcraft.types import CallOutcome, CallRecord, MalformedCall, Task, ToolCall, ToolError


@tool
async def search(query: str) -> str:
    """Search.

    Args:
        query: what to look for.
    """
    if query == "down":
        raise ToolError("Search failed: the server is down.")
    if query == "defect":
        raise ZeroDivisionError("a defect")
    return f"found {query}"


ENV = ToolEnvironment(make_dialect("hermes", tiny_tokenizer()), [search], BudgetConfig(max_calls=2))


TASK = Task("t", "who?", ())


def execute_all(
    *moves: ToolCall | MalformedCall, before: int = 0, env: ToolEnvironment = ENV
) -> list[CallRecord]:
    """Execute the calls of one turn."""

    async def act() -> list[CallRecord]:
        async with env.open_session(TASK) as episode:
            return await episode.run_calls(moves, before)

    return asyncio.run(act())


def execute(
    move: ToolCall | MalformedCall, before: int = 0, env: ToolEnvironment = ENV
) -> CallRecord:
    [call] = execute_all(move, before=before, env=env)
    return call


def test_a_call_is_run() -> None:
    call = execute(ToolCall("search", {"query": "Kalo"}))
    assert (call.tool, call.arguments) == ("search", {"query": "Kalo"})
    assert (call.observation, call.outcome, call.simulated) == ("found Kalo", CallOutcome.OK, False)


def test_the_model_is_told_what_the_tool_says_of_its_failure() -> None:
    call = execute(ToolCall("search", {"query": "down"}))
    assert (call.observation, call.outcome) == (
        "Search failed: the server is down.",
        CallOutcome.FAILED,
    )


def test_another_exception_is_a_defect() -> None:
    with pytest.raises(BrokenToolError, match="ZeroDivisionError") as raised:
        execute(ToolCall("search", {"query": "defect"}))
    call = raised.value.call
    assert (call.tool, call.outcome) == ("search", CallOutcome.BROKEN)
    assert re.search(r"\(tests/environments/test_environment\.py:\d+\)$", call.observation)


def test_over_the_budget_nothing_is_run() -> None:
    assert execute(ToolCall("search", {"query": "defect"}), before=2).outcome is CallOutcome.REFUSED
    call = execute(ToolCall("search", {"query": "Kalo"}), before=3)
    assert (call.observation, call.outcome) == (LIMIT_REACHED_MESSAGE, CallOutcome.REFUSED)
    assert execute(ToolCall("search", {"query": "Kalo"}), before=1).outcome is CallOutcome.OK


def test_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    call = execute(ToolCall("find", {}))
    assert (call.observation, call.outcome) == (
        "There is no tool 'find'; known: search.",
        CallOutcome.MALFORMED,
    )
    bare = ToolEnvironment(ENV.dialect)
    assert execute(ToolCall("search", {}), env=bare).observation == (
        "There is no tool 'search'; known: none."
    )


def test_wrong_arguments_are_the_models_to_mend() -> None:
    call = execute(ToolCall("search", {"q": "Kalo"}))
    assert call.outcome is CallOutcome.MALFORMED
    assert re.match("Wrong arguments for search: query: .*required", call.observation)


def test_what_is_no_call_is_told_why() -> None:
    call = execute(MalformedCall("The call is not JSON."), before=1)
    assert (call.tool, call.observation, call.outcome) == (
        "",
        "The call is not JSON.",
        CallOutcome.MALFORMED,
    )


def test_what_is_no_call_meets_the_limit_too() -> None:
    call = execute(MalformedCall("The call is not JSON."), before=2)
    assert (call.tool, call.observation, call.outcome) == (
        "",
        LIMIT_REACHED_MESSAGE,
        CallOutcome.REFUSED,
    )


def test_only_what_a_tool_was_asked_is_executed() -> None:
    failed = {CallOutcome.FAILED, CallOutcome.UNAVAILABLE, CallOutcome.BROKEN}
    assert {outcome for outcome in CallOutcome if outcome.executed} == {CallOutcome.OK, *failed}
    assert {outcome for outcome in CallOutcome if outcome.failed} == failed


def test_the_schemas_are_those_of_the_tools() -> None:
    assert [schema["function"]["name"] for schema in ENV.schemas] == ["search"]
