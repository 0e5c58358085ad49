"""A policy whose turns are followed: thoughts as they are sampled, calls and their observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers.decoders import DecodeStream

from fieldcraft.dialects.thoughts import ThoughtReader, joined
from fieldcraft.engine.served import ServedEngine
from fieldcraft.records.chains import chains, context, turns_of
from fieldcraft.rollout.turns import Policy, seed_of
from fieldcraft.serving.events import Calls, Event, Observes, Thinks
from fieldcraft.types import (
    Action,
    Answer,
    Author,
    Completion,
    Dialect,
    Observation,
    Step,
    StopReason,
    Trajectory,
)


@dataclass
class Follower:
    """Tells the events of one rollout, and keeps its steps."""

    dialect: Dialect
    tell: Callable[[Event], None]
    trajectory: Trajectory | None = None  # once its first turn begins
    steps: list[Step] = field(default_factory=list)
    # False where a call could not be read, or an answer was forced: no step says that
    imitable: bool = True
    _observed: int = 0

    def __post_init__(self) -> None:
        self.reader = ThoughtReader(self.dialect)

    def begin_turn(self, trajectory: Trajectory) -> Turn:
        self.trajectory = trajectory
        self.catch_up()
        return Turn(self, "".join(segment.text for segment in chains(trajectory)[-1]))

    def catch_up(self) -> None:
        """Tell the observations that nobody has heard of yet."""
        calls = self.trajectory.calls if self.trajectory else []
        for call in calls[self._observed :]:
            self.steps.append(Observation(call.observation))
            self.tell(Observes(call))
        self._observed = len(calls)

    def end(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self.imitable &= not trajectory.forced
        self.catch_up()
        if trajectory.answer is not None:
            self.steps.append(Answer(trajectory.answer))


class Turn:
    """One turn while it is sampled."""

    def __init__(self, follower: Follower, before: str) -> None:
        self.follower, self.reader = follower, follower.reader
        self.answers = follower.trajectory is not None and follower.trajectory.forced
        self.inside = self.reader.begins_inside(before)
        self.text, self.told = "", ""
        self._decoder = DecodeStream(skip_special_tokens=False)
        self._tokenizer = follower.dialect.tokenizer.backend_tokenizer

    def token(self, token: int) -> None:
        """Hear of the next token."""
        if self.answers:  # which is told when it is whole
            return
        self.text += self._decoder.step(self._tokenizer, token) or ""
        self._tell(joined(self.reader.read(self.reader.settled(self.text), self.inside)))

    def end(self, text: str, move: Answer | tuple[Any, ...] | None) -> None:
        """End the turn: the whole text is there, and what the dialect reads in it."""
        if self.answers:
            return
        thoughts = self.reader.read(text, self.inside)
        if not isinstance(move, Answer):  # what stands outside of tags is no answer then
            thoughts = self.reader.read(text, inside=True) or thoughts
        self._tell(joined(thoughts))
        self.follower.steps += thoughts
        for call in move if isinstance(move, tuple) else ():
            readable = isinstance(call, Action)
            self.follower.imitable &= readable
            self.follower.steps += [call] if readable else []
            self.follower.tell(Calls(call if readable else None))

    def _tell(self, thought: str) -> None:
        if len(thought) > len(self.told) and thought.startswith(self.told):
            self.follower.tell(Thinks(thought[len(self.told) :]))
            self.told = thought


@dataclass(frozen=True, kw_only=True)
class FollowedPolicy(Policy):
    """Policy that is followed while it writes. `most_tokens` limits what it writes in all its
    turns; None does not."""

    engine: ServedEngine
    follower: Follower
    most_tokens: int | None = None

    async def generate(
        self, trajectory: Trajectory, session: str, key: str, max_tokens: int, stop: Sequence[str]
    ) -> Completion:
        turn = self.follower.begin_turn(trajectory)
        if self.most_tokens is not None:
            max_tokens = min(max_tokens, self.most_tokens - written_tokens(trajectory))
        if max_tokens < 1:
            return Completion([], [], "", StopReason.LENGTH)
        sampling = self.sampling(max_tokens, stop, seed_of(self.seed, key, trajectory))
        done = await self.engine.generate(context(trajectory), sampling, session, turn.token)
        turn.end(done.text, self._move(trajectory, done, stop))
        return done

    def _move(
        self, trajectory: Trajectory, done: Completion, stop: Sequence[str]
    ) -> Answer | tuple[Any, ...] | None:
        """Return the move that the rollout reads in a turn; nothing in one that was cut or sums
        up."""
        dialect = self.follower.dialect
        if done.reason is StopReason.LENGTH or tuple(stop) != dialect.stop:
            return None
        return dialect.parse([*turns_of(chains(trajectory)[-1]), done.text])


def written_tokens(trajectory: Trajectory) -> int:
    """Return the number of tokens that the policy has sampled."""
    return sum(len(s.ids) for s in trajectory.segments if s.author is Author.POLICY)
