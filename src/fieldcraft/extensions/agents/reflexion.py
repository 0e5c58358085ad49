"""Reflexion: a workflow that learns when its answer was wrong, reflects and tries again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fieldcraft.environments.environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession, run_session
from fieldcraft.extensions.agents.react import interleave_search
from fieldcraft.extensions.agents.turns import finish_from_text
from fieldcraft.rewards.verdict import grade_verdicts
from fieldcraft.types import Reward, Status, Task, Trajectory

MAX_TRIALS = 3
WRONG_TEMPLATE = "{question} The answer {answer} was wrong. What went wrong?"
RETRY_TEMPLATE = "{question} {reflection}"


async def reflexion(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Run ReAct up to three times (Reflexion, arXiv 2303.11366).

    The environment's `verdict_reward`, which knows the gold answers, decides whether the answer was
    wrong. If so, the model writes what went wrong, and its next trial starts with that text. So it
    has more information than any other row of a table.

    One trajectory contains all trials, so every call and token counts. Each trial may use the whole
    budget. The result is the answer of the last trial.
    """
    return await run_session(task, policy, env, key, partial(_try_and_reflect, env.verdict_reward))


async def _try_and_reflect(verdict_reward: Reward, rollout: RolloutSession) -> None:
    trajectory = rollout.trajectory
    task, trial = trajectory.task, rollout
    for trials_left in reversed(range(MAX_TRIALS)):
        first_turn = len(trajectory.policy_turns)
        await interleave_search(trial)
        finish_from_text(trial, first_turn)
        if trials_left == 0 or not await _is_wrong(trajectory, verdict_reward):
            return
        answer = trajectory.answer or ""
        trial.append_question(WRONG_TEMPLATE.format(question=task.question, answer=answer))
        await trial.sample_turn(stop=("\n",))
        reflection = trajectory.policy_turns[-1].strip()
        trial = _with_fresh_budget(rollout)
        trajectory.status, trajectory.answer = Status.NO_ANSWER, None
        trial.append_question(RETRY_TEMPLATE.format(question=task.question, reflection=reflection))


async def _is_wrong(trajectory: Trajectory, verdict_reward: Reward) -> bool:
    """Return whether the verdict reward calls the answer so far wrong.

    An answer that cannot be graded does not count as wrong.
    """
    copied = replace(trajectory, rewards={})
    await grade_verdicts(verdict_reward, [copied])
    return copied.is_correct is False


def _with_fresh_budget(rollout: RolloutSession) -> RolloutSession:
    """Return the rollout session with a new budget on top of the trajectory's usage so far."""
    trajectory, budget = rollout.trajectory, rollout.tool_session.budget
    changes = {
        "max_calls": budget.max_calls + len(trajectory.calls),
        "max_context_tokens": budget.max_context_tokens + len(trajectory.ids),
    }
    tool_session = replace(rollout.tool_session, budget=budget.model_copy(update=changes))
    return replace(rollout, tool_session=tool_session)
