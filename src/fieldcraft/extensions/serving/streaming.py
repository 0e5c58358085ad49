"""Events of a rollout in their order, and their streaming while a request is answered.

Both interfaces report thoughts while they are sampled, calls and observations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.dialects.incremental_decoding import IncrementalDecoder
from fieldcraft.dialects.thought_parser import StreamingThoughtParser, join_thoughts
from fieldcraft.engine.base import StreamingEngine
from fieldcraft.environments.turns import Policy, derive_turn_seed
from fieldcraft.records.chains import get_context_ids, get_policy_turns, split_chains
from fieldcraft.records.costs import count_policy_tokens
from fieldcraft.sampling import Completion, StopReason
from fieldcraft.types import (
    Answer,
    CallRecord,
    DemoStep,
    Dialect,
    Observation,
    ToolCall,
    Trajectory,
)


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    """Next piece of a thought, without tags."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The agent has written a call. The tool of a malformed call is None."""

    call: ToolCall | None


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """The oldest call without an observation has received it."""

    call: CallRecord


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """Last event of a request. `timed_out` is True if the time limit ended it."""

    trajectory: Trajectory
    timed_out: bool = False


AgentEvent = ThoughtDelta | ToolCallStarted | ToolCallFinished | RequestFinished


@dataclass
class RolloutStreamer:
    """Source of the events of one rollout, which also records its steps."""

    dialect: Dialect
    on_event: Callable[[AgentEvent], None]
    trajectory: Trajectory | None = None  # set when its first turn starts
    steps: list[DemoStep] = field(default_factory=list)
    # False if a call was malformed or an answer was forced, which steps cannot represent
    imitable: bool = True
    _num_observed: int = 0

    def __post_init__(self) -> None:
        self.thought_parser = StreamingThoughtParser(self.dialect)

    def start_turn(self, trajectory: Trajectory) -> TurnStreamer:
        self.trajectory = trajectory
        self.emit_observations()
        return TurnStreamer(self, "".join(segment.text for segment in split_chains(trajectory)[-1]))

    def emit_observations(self) -> None:
        """Emit the observations that have not been emitted yet."""
        calls = self.trajectory.calls if self.trajectory else []
        for call in calls[self._num_observed :]:
            self.steps.append(Observation(call.observation))
            self.on_event(ToolCallFinished(call))
        self._num_observed = len(calls)

    def finish(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self.imitable &= not trajectory.forced
        self.emit_observations()
        if trajectory.answer is not None:
            self.steps.append(Answer(trajectory.answer))


class TurnStreamer:
    """Stream of one turn while it is sampled."""

    def __init__(self, streamer: RolloutStreamer, prefix: str) -> None:
        self.streamer, self.thought_parser = streamer, streamer.thought_parser
        self.is_forced_answer = streamer.trajectory is not None and streamer.trajectory.forced
        self.starts_in_thought = self.thought_parser.starts_in_thought(prefix)
        self.text, self.emitted = "", ""
        self._decoder = IncrementalDecoder(streamer.dialect.tokenizer.backend_tokenizer)

    def add_token(self, token: int) -> None:
        """Add the next sampled token."""
        if self.is_forced_answer:  # which is emitted when it is complete
            return
        self.text += self._decoder.step(token)
        self._emit_thought(
            join_thoughts(
                self.thought_parser.parse(
                    self.thought_parser.get_stable_prefix(self.text), self.starts_in_thought
                )
            )
        )

    def finish(self, text: str, parsed: Answer | tuple[Any, ...] | None) -> None:
        """End the turn with its complete text, and the result of the dialect's parser."""
        if self.is_forced_answer:
            return
        thoughts = self.thought_parser.parse(text, self.starts_in_thought)
        if not isinstance(parsed, Answer):  # then text outside of tags is not an answer
            thoughts = self.thought_parser.parse(text, in_thought=True) or thoughts
        self._emit_thought(join_thoughts(thoughts))
        self.streamer.steps += thoughts
        for call in parsed if isinstance(parsed, tuple) else ():
            is_readable = isinstance(call, ToolCall)
            self.streamer.imitable &= is_readable
            self.streamer.steps += [call] if is_readable else []
            self.streamer.on_event(ToolCallStarted(call if is_readable else None))

    def _emit_thought(self, thought: str) -> None:
        if len(thought) > len(self.emitted) and thought.startswith(self.emitted):
            self.streamer.on_event(ThoughtDelta(thought[len(self.emitted) :]))
            self.emitted = thought


@dataclass(frozen=True, kw_only=True)
class StreamingPolicy(Policy):
    """Policy whose turns are streamed while they are sampled. `max_output_tokens` limits the tokens
    of all its turns together; None sets no limit."""

    engine: StreamingEngine
    streamer: RolloutStreamer
    max_output_tokens: int | None = None

    async def generate(
        self, trajectory: Trajectory, session: str, key: str, max_tokens: int, stop: Sequence[str]
    ) -> Completion:
        turn = self.streamer.start_turn(trajectory)
        if self.max_output_tokens is not None:
            max_tokens = min(max_tokens, self.max_output_tokens - count_policy_tokens(trajectory))
        if max_tokens < 1:
            return Completion([], [], "", StopReason.LENGTH)
        sampling = self.make_sampling(
            max_tokens, stop, derive_turn_seed(self.seed, key, trajectory)
        )
        completion = await self.engine.generate(
            get_context_ids(trajectory), sampling, session, turn.add_token
        )
        turn.finish(completion.text, self._parse_turn(trajectory, completion, stop))
        return completion

    def _parse_turn(
        self, trajectory: Trajectory, completion: Completion, stop: Sequence[str]
    ) -> Answer | tuple[Any, ...] | None:
        """Return the parsed turn, or None if it was truncated or is a summary."""
        dialect = self.streamer.dialect
        if completion.stop_reason is StopReason.LENGTH or tuple(stop) != dialect.stop_strings:
            return None
        return dialect.parse([*get_policy_turns(split_chains(trajectory)[-1]), completion.text])
