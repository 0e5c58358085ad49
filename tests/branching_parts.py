"""Scripted policy that reads the observations, and helpers to branch from its rollouts."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.evaluate import make_verdict_rubric
from fieldcraft.extensions.studio.branching.sampler import ContinuationSampler, TrajectoryEdit
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.types import AnyTool, Task, Trajectory
from training_parts import FixedTool

TOKENIZER = tiny_tokenizer()
TASK = Task("t", "Where was the director born?", ("Northport",))
FIRST, SECOND = (f"<begin_search> {word} </end_search>" for word in ("film", "director"))


def answer(town: str) -> str:
    return f"So.\n</think>\n\n\\boxed{{{town}}}"


class Reader(ScriptedEngine):
    """Policy that searches twice and then answers. The answer is correct if the policy has read
    `born in Northport` or if its turn starts with `I know`; otherwise it is correct in one of four
    cases."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER, [])
        self.asked = 0

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        text = TOKENIZER.decode(list(ids))
        self.asked += 1
        searches = text.count("</end_search>")
        sure = "born in Northport" in text or "I know" in text
        lucky = random.Random(sampling.seed).random() < 0.25
        town = "Northport" if sure or lucky else "Southport"
        reply = (FIRST, SECOND)[searches] if searches < 2 and "I know" not in text else answer(town)
        self.turns, self._played = [reply], {}
        return await super().generate(ids, sampling, session)


def environment(*tools: AnyTool, **budget: Any) -> ToolEnvironment:
    dialect = make_dialect("autocoa", TOKENIZER, "")
    return ToolEnvironment(
        dialect, tools or [FixedTool(found)], BudgetConfig.model_validate(budget)
    )


def found(query: str) -> str:
    return {"film": "Ada directed it.", "director": "Ada was born in Southport."}[query]


def recorded(env: ToolEnvironment) -> Trajectory:
    policy = Policy(engine=Reader(), seed=3)
    played = asyncio.run(run_rollout(TASK, policy, env, "key"))
    asyncio.run(make_verdict_rubric().score([played]))
    return played


def sampler(env: ToolEnvironment, samples: int = 40, **others: Any) -> ContinuationSampler:
    return ContinuationSampler(
        policy=Policy(engine=others.pop("engine", None) or Reader(), seed=5),
        env=env,
        rubric=make_verdict_rubric(),
        samples=samples,
        **others,
    )


def branch(
    env: ToolEnvironment,
    trajectory: Trajectory,
    step: int,
    edit: TrajectoryEdit | None = None,
    **how: Any,
) -> Any:
    return asyncio.run(sampler(env, **how).branch(trajectory, step, edit))
