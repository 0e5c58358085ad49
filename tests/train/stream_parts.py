"""Asynchronous steps over scripted rollouts, in virtual time."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, ClassVar

from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.train.algorithm import PolicyGradient, StepModels
from fieldcraft.train.async_sampler import AsyncRolloutSampler
from fieldcraft.train.learner import LearnResult
from fieldcraft.train.sampler import RolloutGroup
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.types import Task
from rl_parts import RIGHT, SEARCH, TOKENIZER, WRONG, RecordingTrainer
from virtual_time import virtually

TASKS = [Task(str(i), f"Question {i}?", ("Northport",)) for i in range(50)]


class Versioned(ScriptedEngine):
    """Engine in which member 0 of a group searches and answers correctly; the others answer
    wrongly.
    """

    def __init__(self) -> None:
        super().__init__(TOKENIZER, [])
        self.version = 0
        self.separated = False

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        member = session.partition("#")[0].partition("/")[2]
        self.turns = [SEARCH, RIGHT] if member == "0" else [WRONG]
        done = await super().generate(ids, sampling, session)
        return Completion(
            done.ids, done.logprobs, done.text, done.stop_reason, [(self.version, len(done.ids))]
        )

    async def sleep(self) -> None:
        raise AssertionError("nothing frees the caches while rollouts go on")

    async def snapshot_weights(self) -> None:
        self.separated = True

    async def update_weights(self, version: int) -> None:
        self.version = version


class Waiting:
    """Tool whose every call waits for `until`, called with the number of the call."""

    name = "search"
    schema: ClassVar[Any] = {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }

    def __init__(self, until: Callable[[int], Any]) -> None:
        self.until = until
        self.calls = 0
        self.given_up = 0

    async def __call__(self, query: str) -> str:
        self.calls += 1
        try:
            await self.until(self.calls - 1)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return f"found {query}"


async def at_once(_: int) -> None:
    await asyncio.sleep(0)


async def never(_: int) -> None:
    await asyncio.Event().wait()


class AtOnce(Executor):
    """Executor without a thread, because waiting for one would look like waiting for the next
    timer.
    """

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given, **named))
        return done


class Recorder:
    """Learner that records the groups of each step."""

    def __init__(self) -> None:
        self.steps: list[list[RolloutGroup]] = []
        self.learning: Callable[[], None] = lambda: None

    def learn(self, groups: Sequence[RolloutGroup], number: int) -> LearnResult:
        self.learning()
        self.steps.append(list(groups))
        return LearnResult({"loss": 0.0}, [[None] * len(group) for group in groups])

    @property
    def places(self) -> list[int]:
        """Indices of the questions. There are as many as tasks, so no epoch ends."""
        return [int(group[0].task.id) for groups in self.steps for group in groups]


class Parts:
    """Stage and its components."""

    def __init__(
        self,
        until: Callable[[int], Any] = at_once,
        rubric: Rubric | None = None,
        budget: dict[str, Any] | None = None,
        **given: Any,
    ) -> None:
        usual = {"steps": 6, "questions_per_step": 2, "group_size": 3, "optim": {"lr": 1e-2}}
        staleness = given.pop("max_staleness", 1)
        self.settings = Rl.model_validate(
            usual | given | {"async": {"max_staleness": staleness}, "max_tool_failure_rate": 0.99}
        )
        self.seconds = 0.0
        self.tool, self.engine, self.learner = Waiting(until), Versioned(), Recorder()
        env = ToolEnvironment(
            make_dialect("autocoa", TOKENIZER, ""), [self.tool], BudgetConfig(**(budget or {}))
        )
        self.stream = AsyncRolloutSampler(
            settings=self.settings,
            tasks=TASKS,
            env=env,
            engine=self.engine,
            rubric=rubric or Rubric([(ExactMatch(), 1.0)]),
            seed=0,
        )
        trainer: Any = RecordingTrainer()
        self.stage = RlStage(
            sampler=self.stream,
            algorithm=PolicyGradient(self.settings),
            models=StepModels(policy=trainer),
        )
        learner: Any = self.learner
        self.stage.learner = learner

    async def steps(
        self, first: int, last: int | None, trainer: Executor | None
    ) -> list[StepMetrics]:
        """Open the stage, run steps, and close it."""
        await self.stream.open()
        if trainer is not None:
            self.stream._executor.shutdown()
            self.stream._executor = trainer  # type: ignore[assignment]
        try:
            numbers = range(first, self.settings.steps if last is None else last)
            return [await asyncio.wait_for(self.stage.step(n), 300) for n in numbers]
        finally:
            await self.stage.close()

    def run(self, first: int = 0, last: int | None = None) -> list[StepMetrics]:
        """Run steps in virtual time, in which learning takes `seconds`."""
        train = self.stream.train

        async def modelled(learn: Callable[[], Any]) -> Any:
            await asyncio.sleep(self.seconds)
            return await train(learn)

        self.stream.train = modelled  # type: ignore[method-assign]
        return virtually(self.steps(first, last, AtOnce()))

    def run_in_a_thread(self) -> list[StepMetrics]:
        return asyncio.run(self.steps(0, None, None))
