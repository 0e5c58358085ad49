"""A user-defined component of each kind. The framework does not depend on this module."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

import fieldcraft as fc
from fieldcraft.concurrency import run_concurrently
from fieldcraft.dialects.base import OBSERVATION_PLACEHOLDER
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession
from fieldcraft.sampling import StopReason
from fieldcraft.train.batch import to_sample
from fieldcraft.train.epochs import draw_epoch_batch
from fieldcraft.train.losses import CrossEntropyLoss
from fieldcraft.train.stages.base import StageInputs
from fieldcraft.types import (
    ONLY_OBSERVATION,
    Answer,
    Author,
    ObservationPosition,
    Tool,
    ToolCall,
    ToolCalls,
)

PEOPLE = {"Rome": 2, "Oslo": 2, "Bern": 2, "Lima": 2, "Kyiv": 2, "Cairo": 2, "Turin": 2, "Nice": 2}


# -- tools ---------------------------------------------------------------------------------------


@fc.tool
def population(city: str) -> str:
    """How many people live in a city, in millions.

    Args:
        city: its name.
    """
    if city not in PEOPLE:
        raise fc.ToolError(f"no city is called {city}")
    return f"{PEOPLE[city]} live in {city}."


class Notes:
    """A tool with a memory that lasts for one rollout."""

    name = "note"
    schema: Any = {  # noqa: RUF012
        "type": "function",
        "function": {
            "name": "note",
            "description": "Write something down.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "what"}},
            },
        },
    }
    opened = closed = 0

    def __init__(self, pages: int = 1) -> None:
        self.pages = pages

    @asynccontextmanager
    async def open(self, task: fc.Task) -> AsyncIterator[Tool]:
        type(self).opened += 1
        try:
            yield Page(self.pages)
        finally:
            type(self).closed += 1


class Page:
    name, schema = Notes.name, Notes.schema

    def __init__(self, room: int) -> None:
        self.room = room
        self.written: list[str] = []

    async def __call__(self, **arguments: Any) -> str:
        if len(self.written) == self.room:
            raise fc.ToolError("the page is full")
        self.written.append(arguments["text"])
        return " / ".join(self.written)


# -- rewards -------------------------------------------------------------------------------------


class Brief(fc.StatelessReward):
    """A reward of 1 for an answer of at most `words` words."""

    name = "brief"

    def __init__(self, words: int = 5) -> None:
        self.words = words

    def __call__(self, group: Sequence[fc.Trajectory]) -> list[float | None]:
        return [float(len((t.answer or "").split()) <= self.words) for t in group]


def shortest(group: Sequence[fc.Trajectory]) -> list[float | None]:
    """Return 1 for the rollouts of a group with the shortest text."""
    lengths = [sum(map(len, t.policy_turns)) for t in group]
    return [float(length == min(lengths)) for length in lengths]


class Numeric(fc.StatelessReward):
    """A verdict reward: answers are correct if they contain the number of a gold answer."""

    name = "numeric"

    def __call__(self, group: Sequence[fc.Trajectory]) -> list[float | None]:
        return [float(any(gold in (t.answer or "") for gold in t.task.answers)) for t in group]


# -- a dialect -----------------------------------------------------------------------------------

CALL = re.compile(r"([a-z]+) ([^\]]*)\]")


@dataclass(frozen=True)
class Brackets(fc.BaseDialect):
    """A dialect with `call[population Rome]`, then `seen[...]`, then `say[2]`."""

    name = "brackets"
    stop_strings = ("]",)
    tags = ("call[", "seen[", "say[", "]")
    default_instruction = "Answer."

    def encode_prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        return super().encode_prompt(
            question, []
        )  # the tools are not shown: the model is taught to use them

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        last = turns[-1] if turns else ""
        if (answered := re.search(r"say\[([^\]]+)\]", last)) is not None:
            return Answer(answered[1])
        if (called := CALL.search(last, last.find("call[") + 5)) is None or "call[" not in last:
            return None
        argument = "text" if called[1] == "note" else "city"
        return (ToolCall(called[1], {argument: called[2]}),)

    def render_thought(self, text: str) -> str:
        return text

    def render_call(self, call: ToolCall) -> str:
        return f"call[{call.tool} {next(iter(call.arguments.values()))}]"

    def render_answer(self, text: str) -> str:
        return f"say[{text}]"

    def observation_delimiters(
        self, position: ObservationPosition = ONLY_OBSERVATION
    ) -> tuple[str, str]:
        return "\nseen[", "]\n"

    def matches_grammar(self, joined_turns: str) -> bool:
        return (
            re.fullmatch(
                rf"(?:call\[[^\]]*\]{OBSERVATION_PLACEHOLDER})*say\[[^\]]+\]", joined_turns
            )
            is not None
        )


# -- an algorithm and a workflow -----------------------------------------------------------------

CAREFUL = {
    "baseline": "leave-one-out",
    "advantage_scale": "none",
    "loss_aggregation": "token",
    "entropy_coef": 0.01,
}


async def ask_first(task: fc.Task, policy: Policy, env: ToolEnvironment, key: str) -> fc.Trajectory:
    """Call the tool with the last word of the question, then let the model answer."""
    return await env.run_session(fc.Trajectory(task), policy, key, _ask_first)


async def _ask_first(conversation: RolloutSession) -> None:
    city = conversation.trajectory.task.question.split()[-1].rstrip("?")
    await conversation.run_calls((ToolCall("population", {"city": city}),))
    if (
        await conversation.sample_turn(conversation.tool_session.dialect.stop_strings)
        is not StopReason.LENGTH
    ):
        move = conversation.tool_session.dialect.parse(conversation.trajectory.policy_turns)
        conversation.finish(move if isinstance(move, Answer) else None)


# -- a stage type --------------------------------------------------------------------------------


class Rejection(fc.TrainingStage):
    """Rejection-sampling fine-tuning.
    It samples every question a few times, and trains on the correct answers."""

    class Settings(fc.Stage):
        type: Literal["own_parts:Rejection"] = "own_parts:Rejection"
        steps: int
        questions: int = 4
        group: int = 2

    def __init__(self, settings: Settings, material: StageInputs) -> None:
        self.settings, self.seed = settings, material.seed
        self.trainer = material.make_trainer(settings.optim, settings.steps)
        self.engine = material.make_engine(self.trainer)
        self.env = material.environment
        self.tasks = material.load_training_tasks()

    @classmethod
    async def create(cls, settings: Settings, material: StageInputs) -> Self:
        return cls(settings, material)

    async def step(self, number: int) -> dict[str, Any]:
        s = self.settings
        chosen = [
            self.tasks[i] for i in draw_epoch_batch(self.seed, number, len(self.tasks), s.questions)
        ]
        jobs = [(t, f"{number}/{p}/{g}") for p, t in enumerate(chosen) for g in range(s.group)]
        policy = Policy(engine=self.engine, seed=self.seed)
        done = await run_concurrently(jobs, lambda t, key: self.env.run(t, policy, key), len(jobs))
        await self.engine.sleep()
        right = [t for t in done if t.answer in t.task.answers]
        units = [(to_sample(t, {Author.POLICY}),) for t in right]
        row: dict[str, Any] = {"kept": len(right), "tokens": sum(len(t.ids) for t in done)}
        if units:
            total = sum(float(sample.weight.sum()) for (sample,) in units)
            row |= self.trainer.step(units, CrossEntropyLoss(), total)
        await self.engine.update_weights(number + 1)
        return row

    def explain_idle(self, row: dict[str, Any]) -> str | None:
        return None if "loss" in row else "no answer was right: train it longer before"
