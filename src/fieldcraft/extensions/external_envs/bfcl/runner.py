"""Runner of rollouts on questions of BFCL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fieldcraft.environments.base import set_environment_reward
from fieldcraft.environments.turns import Policy, open_engine_session
from fieldcraft.extensions.external_envs.bfcl.memory import MemoryRollout, ScenarioMemories
from fieldcraft.extensions.external_envs.bfcl.questions import CATEGORIES, BfclQuestion
from fieldcraft.extensions.external_envs.bfcl.rollouts import BfclContext, BfclRollout
from fieldcraft.types import Task, Trajectory, UserError

CHECKER_KEY = "checker"  # in the metadata of an answered question: why its checker refused it


@dataclass
class BfclRunner:
    """Runner of rollouts. `questions` are those that may be asked, and the conversations that they
    depend on, by id."""

    context: BfclContext
    questions: Mapping[str, BfclQuestion]
    memories: ScenarioMemories = field(init=False)

    def __post_init__(self) -> None:
        self.memories = ScenarioMemories(self.context, self.questions)

    async def __call__(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Run the rollout of a question. Its reward is 1 if the checker accepts it, else 0."""
        question = self.questions.get(task.id)
        if question is None or question.category not in CATEGORIES:
            raise UserError(
                f"the question '{task.id}' does not belong to these categories of BFCL: remove"
                " tasks and world from the recipe."
            )
        memory = await self.memories.get(question, policy) if question.depends_on else None
        trajectory = Trajectory(task)
        async with open_engine_session(trajectory, policy.engine, key) as session:
            parts = (self.context, question, trajectory, policy, session, key)
            rollout = MemoryRollout(*parts, memory) if question.depends_on else BfclRollout(*parts)
            verdict = await (rollout.answer() if question.has_one_turn else rollout.converse())
            set_environment_reward(trajectory, float(verdict["valid"]))
            if verdict["error"]:
                meta = task.meta | {CHECKER_KEY: verdict["error"]}
                trajectory.task = replace(task, meta=meta)
        return trajectory
