"""Turns of a trajectory: prompts, sampled text and tool observations."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import folding
from fieldcraft.dialects.calls import locate_observations
from fieldcraft.dialects.tool_names import ToolNameMap
from fieldcraft.engine.base import Engine
from fieldcraft.environments.guards import BrokenToolError, describe_defect
from fieldcraft.environments.tool_session import ToolSession, make_refused_call
from fieldcraft.records.chains import get_context_ids, get_policy_turns, split_chains
from fieldcraft.records.timeline import track_activity
from fieldcraft.sampling import NO_TRUNCATION, Completion, SamplingParams, StopReason, Truncation
from fieldcraft.types import (
    Answer,
    Author,
    CallRecord,
    Dialect,
    ObservationPosition,
    Segment,
    Status,
    ToolCall,
    ToolCalls,
    Trajectory,
    UserError,
)

_sessions = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Engine and its sampling settings. `seed` and a rollout's key determine every random
    choice."""

    engine: Engine
    temperature: float = 1.0
    truncation: Truncation = NO_TRUNCATION
    seed: int = 0

    async def generate(
        self, trajectory: Trajectory, session: str, key: str, max_tokens: int, stop: Sequence[str]
    ) -> Completion:
        sampling = self.make_sampling(
            max_tokens, stop, derive_turn_seed(self.seed, key, trajectory)
        )
        return await self.engine.generate(get_context_ids(trajectory), sampling, session)

    def make_sampling(self, max_tokens: int, stop: Sequence[str], seed: int) -> SamplingParams:
        """Return the sampling parameters of a turn."""
        return SamplingParams(max_tokens, self.temperature, tuple(stop), seed, self.truncation)


def derive_turn_seed(seed: int, key: str, trajectory: Trajectory) -> int:
    """Return the seed of the next sampled segment of a trajectory."""
    return derive_seed(seed, key, len(trajectory.segments))


def derive_seed(seed: int, key: str, position: int) -> int:
    """Return the seed of a position in a rollout: a 48-bit hash of the arguments."""
    label = f"{seed}:{key}:{position}"
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=6).digest())


async def sample_turn_into(
    policy: Policy,
    trajectory: Trajectory,
    session: str,
    key: str,
    budget: BudgetConfig,
    stop: Sequence[str] = (),
) -> StopReason:
    """Sample a turn, up to a stop string or its end, and append it to the trajectory. If the budget
    ends the turn, the trajectory is truncated."""
    max_tokens = min(
        budget.max_turn_tokens, budget.max_context_tokens - len(get_context_ids(trajectory))
    )
    reason = StopReason.LENGTH
    if max_tokens >= 1:
        with track_activity("sampler"):
            completion = await policy.generate(trajectory, session, key, max_tokens, stop)
        segment = Segment(
            Author.POLICY, completion.ids, completion.text, completion.logprobs, completion.versions
        )
        trajectory.segments.append(segment)
        reason = completion.stop_reason
    if reason is StopReason.LENGTH:
        trajectory.status = Status.TRUNCATED
    return reason


class Simulator(Protocol):
    """Writer of observations in place of the tools."""

    async def simulate_observation(
        self, rollout: RolloutSession, tool_call: ToolCall, index: ObservationPosition
    ) -> CallRecord:
        """Append the segments of a call's observation to the trajectory, and return the call
        record. `index` is the observation's position in its turn."""
        ...

    def release(self, session: str) -> None:
        """Discard the state of a session."""
        ...


@dataclass(frozen=True, kw_only=True)
class RolloutSession:
    """Growing trajectory, with its policy, its tools or their simulator, and the engine's session.

    Every method appends only to the trajectory.
    """

    trajectory: Trajectory
    policy: Policy
    tool_session: ToolSession
    session: str
    key: str
    simulator: Simulator | None = None

    def with_budget(self, **changes: Any) -> RolloutSession:
        """Return the rollout session with other keys of its budget."""
        budget = self.tool_session.budget.model_copy(update=changes)
        return replace(self, tool_session=replace(self.tool_session, budget=budget))

    def append_question(self, question: str) -> None:
        """Append the prompt for a question."""
        tools = self.tool_session
        append_prompt(self.trajectory, question, tools.dialect, tools.schemas)

    async def sample_turn(self, stop: Sequence[str]) -> StopReason:
        """Sample a turn, as `sample_turn_into` does."""
        position = (self.trajectory, self.session, self.key)
        return await sample_turn_into(self.policy, *position, self.tool_session.budget, stop)

    def prefill_thought(self, thought: str) -> None:
        """Prefill the next turn with a thought that the policy did not sample."""
        self.append_prefill(self.tool_session.dialect.render_thought(thought))

    def append_prefill(self, text: str) -> None:
        """Append text to the policy's turn that it did not sample. It is never parsed and never
        trained."""
        ids = self.tool_session.dialect.encode_policy_text(text)
        self.trajectory.segments.append(Segment(Author.PROMPT, ids, text))

    async def run_calls(self, calls: ToolCalls) -> None:
        """Run the calls of one turn and append their observations in call order. Tools run
        concurrently; a simulator writes one observation after the other."""
        positions = locate_observations(calls)
        names = self._make_name_map()
        calls = tuple(map(names.to_canonical, calls))
        if self.simulator is None:
            with track_activity("tools"):
                records = await self.tool_session.run_calls(calls, len(self.trajectory.calls))
            for position, call in zip(positions, records, strict=True):
                self._append_observation(names.translate_fault(call), position)
            return
        for position, parsed_call in zip(positions, calls, strict=True):
            calls_before = len(self.trajectory.calls)
            is_executed = calls_before < self.tool_session.budget.max_calls
            if is_executed and isinstance(parsed_call, ToolCall):
                with track_activity("tools"):
                    call = await self.simulator.simulate_observation(self, parsed_call, position)
                self.trajectory.calls.append(call)
            else:
                [call] = await self.tool_session.run_calls([parsed_call], calls_before)
                self._append_observation(names.translate_fault(call), position)

    def reject_calls(self, calls: ToolCalls, reason: str) -> None:
        """Refuse all calls of one turn. The observation of the first call states the reason."""
        canonical = map(self._make_name_map().to_canonical, calls)
        first, *others = [make_refused_call(call, "") for call in canonical]
        [position] = locate_observations(calls[:1])
        self._append_observation(replace(first, observation=reason), position)
        self.trajectory.calls += others

    def _make_name_map(self) -> ToolNameMap:
        return ToolNameMap(self.trajectory.task, self.tool_session.schemas)

    def _append_observation(self, call: CallRecord, index: ObservationPosition) -> None:
        dialect = self.tool_session.dialect
        self.trajectory.calls.append(call)
        ids = dialect.encode_observation(call.observation, index)
        text = dialect.render_observation(call.observation, index)
        self.trajectory.segments.append(Segment(Author.TOOL, ids, text))

    @property
    def should_fold(self) -> bool:
        """Return whether to fold the chain before the policy continues."""
        fold = self.tool_session.budget.fold
        return (
            fold is not None
            and len(self.trajectory.folds) < fold.max_folds
            and len(get_context_ids(self.trajectory)) >= fold.trigger_tokens
        )

    async def fold(self) -> bool:
        """End the chain with a summary and start the next one. Returns False if the policy writes
        no summary. The trajectory then ends, with the answer if the policy wrote one."""
        dialect, trajectory = self.tool_session.dialect, self.trajectory
        ids, text = folding.encode_summary_prompt(dialect), folding.require_summary_prompt(dialect)
        trajectory.segments.append(Segment(Author.PROMPT, ids, text))
        if await self.sample_turn(folding.SUMMARY_STOP) is StopReason.LENGTH:
            return False
        turns = trajectory.policy_turns
        if (summary := folding.parse_summary(turns[-1])) is None:
            parsed = dialect.parse(get_policy_turns(split_chains(trajectory)[-1]))
            self.finish(parsed if isinstance(parsed, Answer) else None)
            return False
        trajectory.folds.append(len(trajectory.segments))
        question = trajectory.task.question
        self.append_question(folding.render_folded_question(dialect, question, turns, summary))
        return True

    def finish(self, answer: Answer | None) -> None:
        """End the trajectory with the parsed answer, or without one."""
        self.trajectory.status = Status.ANSWERED if answer else Status.NO_ANSWER
        self.trajectory.answer = answer.text if answer else None


def append_prompt(
    trajectory: Trajectory, question: str, dialect: Dialect, schemas: Sequence[dict[str, Any]]
) -> None:
    """Append the prompt for a question, with the tools of the schemas."""
    ids = dialect.encode_prompt(question, ToolNameMap(trajectory.task, schemas).schemas)
    trajectory.segments.append(Segment(Author.PROMPT, ids, dialect.tokenizer.decode(ids)))


@asynccontextmanager
async def open_engine_session(
    trajectory: Trajectory, engine: Engine, key: str
) -> AsyncIterator[str]:
    """Yield the name of an engine session for the trajectory. A defect ends the trajectory; if a
    tool raised it, that call is recorded as the last one."""
    name = f"{key}#{next(_sessions)}"
    start = time.perf_counter()
    try:
        yield name
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - the one boundary: a bad rollout is data
        trajectory.status = Status.ERROR
        trajectory.error = describe_defect(error)
        if isinstance(error, BrokenToolError) and error.call is not None:
            trajectory.calls.append(error.call)
    finally:
        engine.release(name)
        trajectory.seconds += time.perf_counter() - start
