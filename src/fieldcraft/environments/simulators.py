"""Simulators, which write observations in place of tools: a local model or a remote one."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fieldcraft.dialects.base import encode_template
from fieldcraft.environments.turns import Policy, RolloutSession, derive_turn_seed
from fieldcraft.records.chains import get_context_ids
from fieldcraft.sampling import StopReason
from fieldcraft.tools.chat_client import ChatClient, ChatRequestError
from fieldcraft.types import (
    Author,
    CallOutcome,
    CallRecord,
    Dialect,
    ObservationPosition,
    Segment,
    ToolCall,
)

SEARCH_ENGINE_PROMPT = """\
You are the search engine of an encyclopedia. For the query you are given, write the passages that \
it would return, best first, {topk} at most, in exactly this form and with nothing around them:
result 1: "Title"
The passage, two or three sentences of plain fact.
result 2: "Title"
..."""


@dataclass(frozen=True)
class PolicySimulator:
    """Simulator in which the policy (AutoCoA's RL-1, arXiv 2503.06580, section 3.3), or a model
    with separate weights, writes the search results.

    The delimiters of the dialect are given; the text between them is sampled and stored token by
    token with the author SIMULATOR, so that it is never trained on as the policy's text.
    """

    policy: Policy

    async def simulate_observation(
        self, rollout: RolloutSession, tool_call: ToolCall, index: ObservationPosition
    ) -> CallRecord:
        start = time.perf_counter()
        trajectory, tool_session = rollout.trajectory, rollout.tool_session
        tokenizer, budget = tool_session.dialect.tokenizer, tool_session.budget
        opening, closing = tool_session.dialect.observation_delimiters(index)
        stop_string = _find_end_string(tool_session.dialect, closing)
        if opening:  # else the previous observation ends with it
            opening_ids = encode_template(tokenizer, opening)
            trajectory.segments.append(
                Segment(Author.SIMULATOR, opening_ids, opening, [0.0] * len(opening_ids))
            )
        max_room = budget.max_context_tokens - len(get_context_ids(trajectory))
        limit = min(budget.max_turn_tokens, budget.max_observation_tokens, max_room)
        if limit < 1:
            return CallRecord(
                tool_call.tool, tool_call.arguments, "", CallOutcome.FAILED, 0.0, simulated=True
            )
        completion = await self.policy.generate(
            trajectory, rollout.session, rollout.key, limit, [stop_string]
        )
        trajectory.segments.append(
            Segment(
                Author.SIMULATOR,
                completion.ids,
                completion.text,
                completion.logprobs,
                completion.versions,
            )
        )
        before, _, after = closing.partition(stop_string)
        rest = after if completion.stop_reason is StopReason.STOP else before + stop_string + after
        closing_ids = encode_template(tokenizer, rest)
        trajectory.segments.append(
            Segment(Author.SIMULATOR, closing_ids, rest, [0.0] * len(closing_ids))
        )
        text = completion.text.partition(stop_string)[0].strip()
        outcome = (
            CallOutcome.OK if completion.stop_reason is StopReason.STOP else CallOutcome.FAILED
        )
        seconds = time.perf_counter() - start
        return CallRecord(
            tool_call.tool, tool_call.arguments, text, outcome, seconds, simulated=True
        )

    def release(self, session: str) -> None:
        self.policy.engine.release(session)


def _find_end_string(dialect: Dialect, closing: str) -> str:
    """Return the string with which a model ends an observation: the first tag of the closing
    delimiter, or the stripped delimiter if it has no tag."""
    tags = [tag for tag in dialect.tags if tag in closing]
    return min(tags, key=closing.index) if tags else closing.strip() or closing


@dataclass(frozen=True)
class EndpointSimulator:
    """Simulator in which a remote chat model acts as the search engine and receives only the query.

    Its text is encoded as plain text, like a tool's, and its failures are reported to the policy
    like a tool's.
    """

    endpoint: ChatClient
    top_k: int
    temperature: float = 1.0
    seed: int = 0

    async def simulate_observation(
        self, rollout: RolloutSession, tool_call: ToolCall, index: ObservationPosition
    ) -> CallRecord:
        start = time.perf_counter()
        trajectory, tool_session = rollout.trajectory, rollout.tool_session
        query = tool_call.arguments.get("query", tool_call.arguments)
        messages = [
            {"role": "system", "content": SEARCH_ENGINE_PROMPT.format(topk=self.top_k)},
            {"role": "user", "content": str(query)},
        ]
        seed = derive_turn_seed(self.seed, rollout.key, trajectory)
        try:
            reply = await self.endpoint.chat(
                messages,
                max_tokens=tool_session.budget.max_turn_tokens,
                temperature=self.temperature,
                seed=seed,
            )
            if not reply.text.strip():
                raise ChatRequestError("the model wrote nothing")
            text, outcome = reply.text.strip(), CallOutcome.OK
        except ChatRequestError as error:
            text, outcome = f"Search failed: {error}.", CallOutcome.FAILED
        seconds = time.perf_counter() - start
        record = CallRecord(
            tool_call.tool, tool_call.arguments, text, outcome, seconds, simulated=True
        )
        call = tool_session.truncate_observation(record)
        ids = tool_session.dialect.encode_observation(call.observation, index)
        block = tool_session.dialect.render_observation(call.observation, index)
        trajectory.segments.append(Segment(Author.SIMULATOR, ids, block, [0.0] * len(ids)))
        return call

    def release(self, session: str) -> None:
        """Do nothing: the simulator has no state per session."""
