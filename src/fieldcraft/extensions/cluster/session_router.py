"""Routing of turns to the engine that is expected to finish first.

An engine computes all its turns in one batch, so the time per token grows with the number of turns:
about `seconds_per_token` x (turns + HALF_SPEED_TURNS). The speed is measured for each engine.
Cached tokens cost nothing, so a session stays on its engine, and sessions with the same prompt stay
together, until another engine would finish earlier although it has to prefill everything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

HALF_SPEED_TURNS = (
    64  # turns at which a token takes twice as long as with one: each step reads all weights anyway
)
PREFILL_COST_RATIO = 0.1  # time of a prefilled token relative to a generated one
EMA_WEIGHT = 0.3  # weight of the newest turn in the estimate of an engine
DECAY_RATE = (
    0.01  # decay of the estimate of an engine that is not chosen, per routing of all active turns
)


@dataclass(slots=True)
class RoutedRequest:
    """Active turn: its engine, its start time, the number of other turns at that time, and the
    engine that its session has left for it."""

    engine: int
    start_time: float
    num_concurrent: int
    previous_engine: int | None


@dataclass(slots=True)
class _RoutedSession:
    engine: int
    prompt: int  # hash of its first ids
    cached_tokens: int = 0  # tokens in the cache of its engine


@dataclass
class SessionRouter:
    """Router of turns to `engines` engines. Times are seconds of any clock."""

    engines: int
    active_turns: list[int] = field(init=False)  # per engine
    seconds_per_token: list[float | None] = field(
        init=False
    )  # seconds per token and turn; None if unknown
    mean_turn_tokens: float = 64.0  # running mean
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
        """Choose one of the engines `live` for a turn after `ids`."""
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
        """Record that a turn after `ids` tokens has ended with `tokens` new ones, 0 if it
        failed."""
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
        """Forget a session that has ended. Return its engine, or None for an unknown session."""
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
        """Record that an engine has lost its cache, and reset its estimate."""
        self.seconds_per_token[engine] = None
        for routed in self._sessions.values():
            if routed.engine == engine:
                routed.cached_tokens = 0

    def _estimate_seconds(self, engine: int, session: str, prompt: int, length: int) -> float:
        """Return the estimated seconds until a turn after `length` tokens ends on an engine."""
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
        """Return the estimate of an engine, or the fastest estimate if it has none yet."""
        estimate = self.seconds_per_token[engine]
        return min(self._measurements, default=1.0) if estimate is None else estimate

    @property
    def _measurements(self) -> list[float]:
        return [estimate for estimate in self.seconds_per_token if estimate is not None]

    def _decay_estimates(self, chosen: int) -> None:
        """Move the estimates of the other engines towards the fastest, so that an engine that was
        temporarily slow is tried again."""
        fastest = min(self._measurements, default=0.0)
        rate = DECAY_RATE / max(sum(self.active_turns), 1)
        for engine, estimate in enumerate(self.seconds_per_token):
            if estimate is not None and engine != chosen:
                self.seconds_per_token[engine] = estimate + rate * (fastest - estimate)

    def _assign(self, session: str, engine: int, prompt: int) -> int | None:
        """Assign a session to an engine, and return the engine that it leaves."""
        routed = self._sessions.get(session)
        if routed is not None and routed.engine == engine:
            return None
        previous_engine = self.forget(session)
        self._sessions[session] = _RoutedSession(engine, prompt)
        session_counts = self._engines_by_prompt.setdefault(prompt, {})
        session_counts[engine] = session_counts.get(engine, 0) + 1
        return previous_engine
