"""The choice of an engine for a turn: the one that is expected to end it first.

An engine computes all its turns side by side, so a token takes the longer the more turns there are:
about `seconds_per_token` x (turns + HALF_SPEED_TURNS). Slowness is measured for each engine. What
an engine has read before costs nothing, so a session stays where it is, and sessions that begin
alike stay together, until another engine would be done earlier in spite of having to read
everything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

HALF_SPEED_TURNS = (
    64  # turns at which a token takes twice as long as for one: a step reads all weights anyway
)
PREFILL_COST_RATIO = 0.1  # of the time of a written token: that of one which is only read
EMA_WEIGHT = 0.3  # weight of the newest turn in what is known of an engine
DECAY_RATE = (
    0.01  # of what is known of an engine that is not chosen, while all turns are routed once
)


@dataclass(slots=True)
class RoutedRequest:
    """A turn under way: its engine, the time at which it began, the number of turns beside it
    then, and the engine that its session has left for it."""

    engine: int
    start_time: float
    num_concurrent: int
    previous_engine: int | None


@dataclass(slots=True)
class _RoutedSession:
    engine: int
    prompt: int  # hash of the ids that it began with
    cached_tokens: int = 0  # tokens that its engine knows


@dataclass
class SessionRouter:
    """A router of turns to `engines` engines. Times are seconds of any clock."""

    engines: int
    active_turns: list[int] = field(init=False)  # turns under way
    seconds_per_token: list[float | None] = field(
        init=False
    )  # seconds a token and turn; None: not known
    mean_turn_tokens: float = 64.0  # of a turn, in the mean
    _sessions: dict[str, _RoutedSession] = field(default_factory=dict)
    _engines_by_prompt: dict[int, dict[int, int]] = field(
        default_factory=dict
    )  # prompt: engine: sessions

    def __post_init__(self) -> None:
        self.active_turns = [0] * self.engines
        self.seconds_per_token = [None] * self.engines

    def route(
        self, session: str, ids: Sequence[int], live: Collection[int], now: float
    ) -> RoutedRequest:
        """Choose one of the engines `live` for a turn behind `ids`."""
        routed = self._sessions.get(session)
        prompt = hash(tuple(ids)) if routed is None else routed.prompt
        engine = min(live, key=lambda e: (self._estimate_seconds(e, session, prompt, len(ids)), e))
        self._decay_estimates(engine)
        previous_engine = self._assign(session, engine, prompt)
        self.active_turns[engine] += 1
        return RoutedRequest(engine, now, self.active_turns[engine], previous_engine)

    def record(
        self, session: str, request: RoutedRequest, ids: int, tokens: int, now: float
    ) -> None:
        """Record that a turn behind `ids` tokens has ended with `tokens` more; 0: nothing came of
        it."""
        num_concurrent = (request.num_concurrent + self.active_turns[request.engine]) / 2
        self.active_turns[request.engine] -= 1
        if not tokens:
            return
        if session in self._sessions:
            self._sessions[session].cached_tokens = ids + tokens
        measured = (now - request.start_time) / tokens / (num_concurrent + HALF_SPEED_TURNS)
        estimate = self.seconds_per_token[request.engine]
        self.seconds_per_token[request.engine] = (
            measured if estimate is None else estimate + EMA_WEIGHT * (measured - estimate)
        )
        self.mean_turn_tokens += EMA_WEIGHT * (tokens - self.mean_turn_tokens)

    def forget(self, session: str) -> int | None:
        """Forget a session that has ended. Returns its engine, None for an unknown session."""
        routed = self._sessions.pop(session, None)
        if routed is None:
            return None
        session_counts = self._engines_by_prompt[routed.prompt]
        session_counts[routed.engine] -= 1
        if not session_counts[routed.engine]:
            del session_counts[routed.engine]
        if not session_counts:
            del self._engines_by_prompt[routed.prompt]
        return routed.engine

    def mark_lost(self, engine: int) -> None:
        """Record that an engine has lost all that it knew, and that nothing is known of it."""
        self.seconds_per_token[engine] = None
        for routed in self._sessions.values():
            if routed.engine == engine:
                routed.cached_tokens = 0

    def _estimate_seconds(self, engine: int, session: str, prompt: int, length: int) -> float:
        """Return the seconds until a turn behind `length` tokens would end there."""
        routed = self._sessions.get(session)
        cached_tokens = 0
        if routed is not None and routed.engine == engine:
            cached_tokens = routed.cached_tokens
        elif routed is None and engine in self._engines_by_prompt.get(prompt, {}):
            cached_tokens = length
        decode_cost = (self.active_turns[engine] + 1 + HALF_SPEED_TURNS) * self.mean_turn_tokens
        return self._estimate_seconds_per_token(engine) * (
            decode_cost + PREFILL_COST_RATIO * HALF_SPEED_TURNS * (length - cached_tokens)
        )

    def _estimate_seconds_per_token(self, engine: int) -> float:
        """Return the slowness of an engine; that of the fastest, if it has not answered yet."""
        estimate = self.seconds_per_token[engine]
        return min(self._measurements, default=1.0) if estimate is None else estimate

    @property
    def _measurements(self) -> list[float]:
        return [estimate for estimate in self.seconds_per_token if estimate is not None]

    def _decay_estimates(self, chosen: int) -> None:
        """Move the slowness of the other engines towards the fastest, so that an engine which was
        slow for a while gets a turn again some time."""
        fastest = min(self._measurements, default=0.0)
        rate = DECAY_RATE / max(sum(self.active_turns), 1)
        for engine, estimate in enumerate(self.seconds_per_token):
            if estimate is not None and engine != chosen:
                self.seconds_per_token[engine] = estimate + rate * (fastest - estimate)

    def _assign(self, session: str, engine: int, prompt: int) -> int | None:
        """Record where a session is, and return the engine that it leaves."""
        routed = self._sessions.get(session)
        if routed is not None and routed.engine == engine:
            return None
        previous_engine = self.forget(session)
        self._sessions[session] = _RoutedSession(engine, prompt)
        session_counts = self._engines_by_prompt.setdefault(prompt, {})
        session_counts[engine] = session_counts.get(engine, 0) + 1
        return previous_engine
