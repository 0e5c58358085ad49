"""ReAct-style workflow for a model that cannot follow a prompt: it reasons, and code acts."""

from __future__ import annotations

from fieldcraft.environments.environment import ToolEnvironment
from fieldcraft.environments.turns import Policy, RolloutSession, run_session
from fieldcraft.extensions.agents.turns import append_search, finish_from_text
from fieldcraft.records.words import split_words
from fieldcraft.sampling import StopReason
from fieldcraft.types import Dialect, Task, Trajectory

SENTENCE_ENDS = (".", "\n")


async def react(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Alternate observations and thoughts (ReAct, arXiv 2210.03629). Code does the alternation.

    Code searches for the question. The model reads the result and writes one sentence of thought.
    Code then searches for the new words of this sentence, as long as there are new words and calls
    are left. At the end the model continues to its answer. So a model that knows no tools can be
    compared with one that was trained to use them.
    """
    return await run_session(task, policy, env, key, _run)


async def _run(rollout: RolloutSession) -> None:
    await interleave_search(rollout)
    finish_from_text(rollout)


async def interleave_search(rollout: RolloutSession) -> None:
    """Run the alternation, from the end of a prompt to the end of the model's answer."""
    trajectory, dialect = rollout.trajectory, rollout.tool_session.dialect
    query = trajectory.task.question
    known_words = set(split_words(query))
    while query and len(trajectory.calls) < rollout.tool_session.budget.max_calls:
        await append_search(rollout, query)
        if await rollout.sample_turn(SENTENCE_ENDS) is not StopReason.STOP:
            return
        thought = split_words(_strip_tags(trajectory.segments[-1].text, dialect))
        query = " ".join(word for word in thought if word not in known_words)
        known_words |= set(thought)
    await rollout.sample_turn(stop=())


def _strip_tags(text: str, dialect: Dialect) -> str:
    """Return the text of a thought without tags, so that the query contains none."""
    for tag in dialect.tags:
        text = text.replace(tag, " ")
    return text
