"""The writers of observations in place of the tools: a model of one's own, or a remote one."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fieldcraft.dialects.base import encode_frame
from fieldcraft.endpoints.openai import ChatEndpoint, EndpointError
from fieldcraft.envs.environment import Episode
from fieldcraft.records.chains import context
from fieldcraft.rollout.turns import Policy, seed_of
from fieldcraft.types import (
    Action,
    Author,
    Call,
    Dialect,
    Outcome,
    Place,
    Segment,
    StopReason,
    Trajectory,
)

SEARCH_ENGINE = """\
You are the search engine of an encyclopedia. For the query you are given, write the passages that \
it would return, best first, {topk} at most, in exactly this form and with nothing around them:
result 1: "Title"
The passage, two or three sentences of plain fact.
result 2: "Title"
..."""


@dataclass(frozen=True)
class PolicySimulator:
    """A simulator whose model writes the search results itself: the policy (AutoCoA's RL-1, arXiv
    2503.06580, section 3.3), or one with weights of its own.

    The dialect's frame is given; what stands between is sampled and kept, id for id, under the
    author SIMULATOR, so that it is never trained on as the policy's own.
    """

    policy: Policy

    async def observe(
        self,
        trajectory: Trajectory,
        action: Action,
        place: Place,
        episode: Episode,
        session: str,
        key: str,
    ) -> Call:
        start = time.perf_counter()
        tokenizer, budget = episode.dialect.tokenizer, episode.budget
        opening, closing = episode.dialect.observation_frame(place)
        end = _end_of_text(episode.dialect, closing)
        if opening:  # else it stands at the end of the observation before
            head = encode_frame(tokenizer, opening)
            trajectory.segments.append(Segment(Author.SIMULATOR, head, opening, [0.0] * len(head)))
        room = budget.total_tokens - len(context(trajectory))
        limit = min(budget.turn_tokens, budget.observation_tokens, room)
        if limit < 1:
            return Call(action.tool, action.arguments, "", Outcome.FAILED, 0.0, simulated=True)
        done = await self.policy.generate(trajectory, session, key, limit, [end])
        trajectory.segments.append(
            Segment(Author.SIMULATOR, done.ids, done.text, done.logprobs, done.versions)
        )
        before, _, after = closing.partition(end)
        rest = after if done.reason is StopReason.STOP else before + end + after
        tail = encode_frame(tokenizer, rest)
        trajectory.segments.append(Segment(Author.SIMULATOR, tail, rest, [0.0] * len(tail)))
        text = done.text.partition(end)[0].strip()
        outcome = Outcome.OK if done.reason is StopReason.STOP else Outcome.FAILED
        seconds = time.perf_counter() - start
        return Call(action.tool, action.arguments, text, outcome, seconds, simulated=True)

    def release(self, session: str) -> None:
        self.policy.engine.release(session)


def _end_of_text(dialect: Dialect, closing: str) -> str:
    """Return the part of what follows an observation that a model writes to end it: its first tag,
    or where no tag follows, all but the space around it."""
    tags = [tag for tag in dialect.tags if tag in closing]
    return min(tags, key=closing.index) if tags else closing.strip() or closing


@dataclass(frozen=True)
class ChatSimulator:
    """A simulator whose remote chat model plays the search engine; it is shown the query and
    nothing else.

    What it writes enters as plain text, as a tool's does, and its failures are told to the policy
    as a tool's are.
    """

    endpoint: ChatEndpoint
    topk: int
    temperature: float = 1.0
    seed: int = 0

    async def observe(
        self,
        trajectory: Trajectory,
        action: Action,
        place: Place,
        episode: Episode,
        session: str,
        key: str,
    ) -> Call:
        start = time.perf_counter()
        query = action.arguments.get("query", action.arguments)
        messages = [
            {"role": "system", "content": SEARCH_ENGINE.format(topk=self.topk)},
            {"role": "user", "content": str(query)},
        ]
        seed = seed_of(self.seed, key, trajectory)
        try:
            reply = await self.endpoint.chat(
                messages,
                max_tokens=episode.budget.turn_tokens,
                temperature=self.temperature,
                seed=seed,
            )
            if not reply.text.strip():
                raise EndpointError("the model wrote nothing")
            text, outcome = reply.text.strip(), Outcome.OK
        except EndpointError as error:
            text, outcome = f"Search failed: {error}.", Outcome.FAILED
        seconds = time.perf_counter() - start
        said = Call(action.tool, action.arguments, text, outcome, seconds, simulated=True)
        call = episode.observed(said)
        ids = episode.dialect.encode_observation(call.observation, place)
        block = episode.dialect.write_observation(call.observation, place)
        trajectory.segments.append(Segment(Author.SIMULATOR, ids, block, [0.0] * len(ids)))
        return call

    def release(self, session: str) -> None:
        """Do nothing: the simulator keeps nothing of a session."""
