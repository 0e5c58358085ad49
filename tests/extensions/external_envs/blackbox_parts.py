"""Rollouts of external agents over a script, on the loopback server of the gateway."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from blackbox_agents import ARRIVED

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.blackbox import BlackBoxEnvironment
from fieldcraft.extensions.external_envs.command import CommandEnvironment
from fieldcraft.records.chains import split_chains, validate_folds
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.types import Author, Task, Tokenizer, Trajectory

TOKENIZER = tiny_tokenizer()
TASK = Task("q", "Who?", ("Ada",))
ONE_TURN = [Author.PROMPT, Author.POLICY]
TWO_TURNS = [*ONE_TURN, Author.TOOL, Author.POLICY]


class InOrder(ScriptedEngine):
    """A scripted engine that plays its script over all sessions and records the open ones."""

    def __init__(self, turns: Sequence[str], tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, turns)
        self.sessions: set[str] = set()
        self.slow = False
        self.broken: Exception | None = None

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        self.sessions.add(session)
        self.prompts.append(list(ids))
        turn, self.turns = self.turns[:1], self.turns[1:]
        if self.slow:
            ARRIVED.set()
            await asyncio.sleep(600)
        if self.broken is not None:
            raise self.broken
        return await ScriptedEngine(self.tokenizer, turn).generate(ids, sampling, "alone")

    def release(self, session: str) -> None:
        self.sessions.discard(session)


def run_scripted(
    agent: str | None,
    turns: Sequence[str],
    settings: Any = None,
    slow: bool = False,
    broken: Exception | None = None,
    tokenizer: Tokenizer = TOKENIZER,
    task: Task = TASK,
    run: Callable[[Coroutine[Any, Any, Trajectory]], Trajectory] = asyncio.run,
    **budget: Any,
) -> tuple[Trajectory, InOrder]:
    name = agent if agent is None or ":" in agent else f"blackbox_agents:{agent}"
    keys = settings or {}
    environment = CommandEnvironment(**keys) if name is None else BlackBoxEnvironment(name, **keys)
    engine = InOrder(turns, tokenizer)
    engine.slow, engine.broken = slow, broken
    limits = BudgetConfig.model_validate({"max_context_tokens": 600, **budget})

    async def run_agent() -> Trajectory:
        async with isolate_failures(environment, make_dialect("hermes", tokenizer), limits) as go:
            return await go.run(task, Policy(engine=engine), "k")

    ARRIVED.clear()
    done = run(run_agent())
    assert engine.sessions == set()
    validate_folds(done)
    return done, engine


def authors(trajectory: Trajectory) -> list[list[Author]]:
    return [[segment.author for segment in chain] for chain in split_chains(trajectory)]
