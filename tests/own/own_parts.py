"""A part of every kind, as a user writes them. Nothing in the framework knows of this module."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

import fieldcraft as fc
from fieldcraft.algos.losses import CrossEntropy
from fieldcraft.dialects.base import OBSERVATION
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.rollout.loop import rollout, rollouts
from fieldcraft.rollout.turns import Conversation, Policy, converse
from fieldcraft.train.batch import to_sample
from fieldcraft.train.epochs import draw
from fieldcraft.train.stages.base import Material
from fieldcraft.types import ALONE, Action, Answer, Author, Calls, Place, StopReason, Tool

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
    """A tool that remembers, for the length of one rollout."""

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
    """1 for an answer of at most so many words."""

    name = "brief"

    def __init__(self, words: int = 5) -> None:
        self.words = words

    def __call__(self, group: Sequence[fc.Trajectory]) -> list[float | None]:
        return [float(len((t.answer or "").split()) <= self.words) for t in group]


def shortest(group: Sequence[fc.Trajectory]) -> list[float | None]:
    """1 for the rollouts of a group that wrote the least."""
    written = [sum(map(len, t.policy_texts)) for t in group]
    return [float(length == min(written)) for length in written]


class Numeric(fc.StatelessReward):
    """Which answers are right: those with the number of a gold answer in them."""

    name = "numeric"

    def __call__(self, group: Sequence[fc.Trajectory]) -> list[float | None]:
        return [float(any(gold in (t.answer or "") for gold in t.task.answers)) for t in group]


# -- a dialect -----------------------------------------------------------------------------------

CALL = re.compile(r"([a-z]+) ([^\]]*)\]")


@dataclass(frozen=True)
class Brackets(fc.BaseDialect):
    """`call[population Rome]`, then `seen[...]`, then `say[2]`."""

    name = "brackets"
    stop = ("]",)
    tags = ("call[", "seen[", "say[", "]")
    own_instruction = "Answer."

    def prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        return super().prompt(question, [])  # the tools are not shown: it is taught to use them

    def parse(self, written: Sequence[str]) -> Answer | Calls | None:
        last = written[-1] if written else ""
        if (answered := re.search(r"say\[([^\]]+)\]", last)) is not None:
            return Answer(answered[1])
        if (called := CALL.search(last, last.find("call[") + 5)) is None or "call[" not in last:
            return None
        argument = "text" if called[1] == "note" else "city"
        return (Action(called[1], {argument: called[2]}),)

    def write_thought(self, text: str) -> str:
        return text

    def write_action(self, action: Action) -> str:
        return f"call[{action.tool} {next(iter(action.arguments.values()))}]"

    def write_answer(self, text: str) -> str:
        return f"say[{text}]"

    def observation_frame(self, place: Place = ALONE) -> tuple[str, str]:
        return "\nseen[", "]\n"

    def obeys_grammar(self, turns: str) -> bool:
        return re.fullmatch(rf"(?:call\[[^\]]*\]{OBSERVATION})*say\[[^\]]+\]", turns) is not None


# -- an algorithm and a workflow -----------------------------------------------------------------

CAREFUL = {"baseline": "others", "scale": "none", "loss_weight": "token", "entropy_coef": 0.01}


async def ask_first(task: fc.Task, policy: Policy, env: ToolEnvironment, key: str) -> fc.Trajectory:
    """Code asks the tool about the last word of the question; the model answers."""
    return await converse(task, policy, env, key, _ask_first)


async def _ask_first(conversation: Conversation) -> None:
    city = conversation.trajectory.task.question.split()[-1].rstrip("?")
    await conversation.act((Action("population", {"city": city}),))
    if await conversation.write(conversation.episode.dialect.stop) is not StopReason.LENGTH:
        move = conversation.episode.dialect.parse(conversation.trajectory.policy_texts)
        conversation.conclude(move if isinstance(move, Answer) else None)


# -- a stage type --------------------------------------------------------------------------------


class Rejection(fc.StageType):
    """Rejection-sampling fine-tuning: sample every question a few times, and train on what was
    answered right."""

    class Settings(fc.Stage):
        type: Literal["own_parts:Rejection"] = "own_parts:Rejection"
        steps: int
        questions: int = 4
        group: int = 2

    def __init__(self, settings: Settings, material: Material) -> None:
        self.settings, self.seed = settings, material.seed
        self.trainer = material.trainer(settings.optim, settings.steps)
        self.engine = material.engine(self.trainer)
        self.env = material.environment()
        self.tasks = material.training_questions()

    @classmethod
    async def open(cls, settings: Settings, material: Material) -> Self:
        return cls(settings, material)

    async def step(self, number: int) -> dict[str, Any]:
        s = self.settings
        chosen = [self.tasks[i] for i in draw(self.seed, number, len(self.tasks), s.questions)]
        jobs = [(t, f"{number}/{p}/{g}") for p, t in enumerate(chosen) for g in range(s.group)]
        policy = Policy(engine=self.engine, seed=self.seed)
        done = await rollouts(jobs, lambda t, key: rollout(t, policy, self.env, key), len(jobs))
        await self.engine.sleep()
        right = [t for t in done if t.answer in t.task.answers]
        units = [(to_sample(t, {Author.POLICY}),) for t in right]
        row: dict[str, Any] = {"kept": len(right), "tokens": sum(len(t.ids) for t in done)}
        if units:
            total = sum(float(sample.weight.sum()) for (sample,) in units)
            row |= self.trainer.step(units, CrossEntropy(), total)
        await self.engine.publish(number + 1)
        return row

    def idle(self, row: dict[str, Any]) -> str | None:
        return None if "loss" in row else "no answer was right: train it longer before"
