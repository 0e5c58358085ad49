"""Teachers from a checkpoint folder: prices, variables of the chat template, and the budget."""

import asyncio
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.extensions.curation.chat_models import EngineChatModel
from fieldcraft.extensions.curation.react_agent import AgentAttempt
from fieldcraft.extensions.curation.teachers import make_prompted_agent, make_team_agent
from fieldcraft.extensions.curation.team import Blackboard, Team, TeamMember
from fieldcraft.runs.sampling import Decoding
from fieldcraft.tools.base import tool
from fieldcraft.tools.chat_client import ChatReply, TokenUsage
from fieldcraft.types import Observation, Task

TASK = Task("t", "Where was Ada born?", ("Oslo",))
TEXT = "word " * 2000
BUDGET = BudgetConfig(max_observation_tokens=64)


@tool
async def search(query: str) -> str:
    """Search.

    Args:
        query: what to look for.
    """
    return TEXT


class Script:
    """Chat that plays its replies and records its messages."""

    def __init__(self, *replies: str) -> None:
        self.replies = iter(replies)
        self.messages: list[Any] = []

    async def chat(self, messages: Sequence[Any], **options: Any) -> ChatReply:
        self.messages = [dict(message) for message in messages]
        return ChatReply(next(self.replies), "", "stop", TokenUsage(1, 1, None))


def test_an_engine_has_the_prices_variables_and_date_of_the_recipe() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{{ strftime_now('%Y') }}{% if enable_thinking is false %} brief{% endif %}"
        "{% for message in messages %} {{ message.content }}{% endfor %}"
    )
    engine, messages = ScriptedEngine(tokenizer, ["x"]), [{"role": "user", "content": "a"}]
    variables, day = {"enable_thinking": False}, date(2031, 5, 4)
    priced = EngineChatModel(engine, tokenizer, (2e6, 1e6), variables, day)
    usage = asyncio.run(priced.chat(messages, max_tokens=9, temperature=1.0)).usage
    assert tokenizer.decode(engine.prompts[-1]) == "2031 brief a"
    assert usage.cost == 2 * usage.prompt_tokens + usage.completion_tokens
    plain = EngineChatModel(engine, tokenizer)
    assert asyncio.run(plain.chat(messages, max_tokens=9, temperature=1.0)).usage.cost is None


def attempt_alone(tokens_of: Path | None) -> tuple[AgentAttempt, str]:
    chat = Script('Action: search {"query": "Ada"}', "Answer: Oslo")
    recipe: Any = SimpleNamespace(budget=BUDGET)
    agent = make_prompted_agent(recipe, chat, [search], Decoding(1.0), tokens_of)
    return asyncio.run(agent.attempt(TASK, "key")), chat.messages[-1]["content"]


def attempt_as_team(tokens_of: Path | None) -> tuple[AgentAttempt, str]:
    async def play(board: Blackboard) -> None:
        await board.act("search", query="Ada")
        board.answer((await board.ask("writer", town=()))["town"])

    chat, context = Script("Town: Oslo"), SimpleNamespace(tools=[search])
    members = {"writer": TeamMember(chat, "", 1.0)}
    made: Any = context
    agent = make_team_agent(made, Team({}, play), members, BUDGET, tokens_of)
    return asyncio.run(agent.attempt(TASK, "key")), chat.messages[-1]["content"]


@pytest.mark.parametrize("attempt", [attempt_alone, attempt_as_team])
def test_an_observation_is_cut_to_the_budget_if_a_tokenizer_counts(
    attempt: Any, tmp_path: Path
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    for tokens_of, is_cut in ((folder, True), (None, False)):
        found, read = attempt(tokens_of)
        [observation] = [step.text for step in found.steps if isinstance(step, Observation)]
        assert found.answer == "Oslo"
        assert observation in read
        assert (len(observation) < 1000) is is_cut
        assert is_cut or observation == TEXT
