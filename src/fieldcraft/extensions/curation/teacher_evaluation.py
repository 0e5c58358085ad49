"""Evaluation of the teachers of a recipe on the questions of its models."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fieldcraft.config.choices import parse_signature
from fieldcraft.config.plan import Step
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.data.steps_io import make_untokenised_trajectory
from fieldcraft.dialects.tool_names import CALLED_KEY
from fieldcraft.evaluation.summary import RequestCost
from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus, PromptedAgent
from fieldcraft.extensions.curation.teachers import (
    find_team,
    make_prompted_agent,
    open_chat_model,
    open_team_agent,
    require_world,
    resolve_teacher_decoding,
)
from fieldcraft.extensions.curation.team import TeamAgent
from fieldcraft.extensions.curation.team_costs import compute_team_cost
from fieldcraft.records.costs import CostModel
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.evaluating import evaluate_environment
from fieldcraft.tools.factory import collect_costs
from fieldcraft.types import Status, Task, ToolCall, Trajectory

AnswerFunction = Callable[[Task, str], Awaitable[Trajectory]]

STATUS_BY_ATTEMPT_END = {
    AttemptStatus.ANSWERED: Status.ANSWERED,
    AttemptStatus.TRUNCATED: Status.TRUNCATED,
}
ENDED_BY_TOOL = (AttemptStatus.TOOL_FAILED, AttemptStatus.TOO_MANY_CALLS)


@dataclass(frozen=True)
class TeacherEnvironment:
    """Open environment (`OpenEnvironment`) in which a teacher acts itself, without a policy."""

    answer: AnswerFunction
    budget: BudgetConfig
    costs: CostModel  # of calls; its tokens are not policy tokens

    async def run(self, task: Task, policy: None, key: str) -> Trajectory:
        """Return the teacher's chain for a task; `key` determines the random choices of a scripted
        teacher."""
        trajectory = await self.answer(task, key)
        self.costs.price(trajectory)
        return trajectory


async def evaluate_teacher(context: RunContext, step: Step) -> None:
    """Evaluate a teacher, `team` or `lone`, on the questions of the run. Without a configured model
    it is scripted by the world, and its chains are encoded with the tokenizer of the step's model,
    which counts the tokens of observations for a model, too.

    Raises UserError if there is no such teacher, or its model does not respond.
    """
    recipe = context.recipe.evaluation_recipe
    answer = await _make_teacher(context, recipe, step.name, context.folder.model(step.model))
    costs = CostModel(collect_costs(context.tools))
    teacher = TeacherEnvironment(answer, recipe.budget, costs)
    await evaluate_environment(context, step.name, teacher, policy=None)


async def _make_teacher(
    context: RunContext, recipe: Recipe, name: str, model: Path
) -> AnswerFunction:
    settings = recipe.teacher
    if settings.model is None:
        return _make_scripted_teacher(context, name, model)
    if name == "team":
        assert settings.team is not None, "parse_recipe sees to that"
        team = find_team(settings.team)
        return make_model_teacher(await open_team_agent(context, team, recipe.budget, model))
    chat = await open_chat_model(context, settings, context.folder.collect_folder)
    decoding = resolve_teacher_decoding(context, settings)
    return make_model_teacher(make_prompted_agent(recipe, chat, context.tools, decoding, model))


def _make_scripted_teacher(context: RunContext, name: str, model: Path) -> AnswerFunction:
    world, encoder = require_world(context.data_source), context.load_encoder(model)
    demonstrate = world.team_demonstration if name == "team" else world.single_agent_demonstration

    prompts = _get_member_prompts(context)

    def count_tokens(text: str) -> int:
        return len(encoder.dialect.tokenizer.encode(text))

    async def answer(task: Task, key: str) -> Trajectory:
        steps = demonstrate(task, random.Random(f"{context.recipe.seed}:{name}:{key}"))
        if name == "team":
            cost = compute_team_cost(task.question, steps, prompts, count_tokens)
            task = replace(task, meta=task.meta | cost.as_meta())
        return encoder.encode(task, steps)

    return answer


def _get_member_prompts(context: RunContext) -> Mapping[str, str]:
    """Return the prompts of the members of the recipe's team, those of tools also under the other
    names of the tools; empty for a tiny model, whose tokenizer would overcount them."""
    settings, is_pretrained = context.recipe.teacher, context.recipe.model is not None
    if settings.team is None or not is_pretrained:
        return {}
    prompts = find_team(settings.team).member_prompts(context.tools)
    aliases = {
        parse_signature(text).name: prompts[tool.name]
        for tool in context.tools
        for names in tool.schema.get(CALLED_KEY, {}).values()
        for text in names
    }
    return prompts | aliases


def make_model_teacher(teacher: TeamAgent | PromptedAgent) -> AnswerFunction:
    """Return the function that lets a model answer; the metadata of the trajectory has the cost of
    its requests."""

    async def answer(task: Task, key: str) -> Trajectory:
        attempt = await teacher.attempt(task, key)
        cost = RequestCost(
            _count_requests(attempt),
            attempt.usage.prompt_tokens,
            attempt.usage.completion_tokens,
            attempt.usage.cost,
        )
        task = replace(task, meta=task.meta | cost.as_meta())
        trajectory = make_untokenised_trajectory(task, attempt.steps)
        trajectory.well_formed = attempt.status is AttemptStatus.ANSWERED
        trajectory.status = STATUS_BY_ATTEMPT_END.get(attempt.status, Status.NO_ANSWER)
        if attempt.failed:
            trajectory.status, trajectory.error = Status.ERROR, attempt.detail
        return trajectory

    return answer


def _count_requests(attempt: AgentAttempt) -> int:
    """Return the number of requests: one per turn of a team member; for a single agent one before
    each action, and one for any other end than an action."""
    if attempt.member_usage:
        return sum(member.requests for member in attempt.member_usage.values())
    actions = sum(isinstance(step, ToolCall) for step in attempt.steps)
    is_ended_by_tool = attempt.status in ENDED_BY_TOOL and attempt.answer is None
    return actions + (not is_ended_by_tool)
