"""Routing of turns to the engine that is least busy, in relation to its speed.

Another engine has to read a session from its start, so a session stays on its engine, and a new one
goes where another one has the same prompt, unless that engine is much slower for one more turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

HALF_SPEED_TURNS = 64  # turns in a batch with which a token takes twice as long as alone
STAY_RATIO = 2.0  # ratio of times per token above which a session leaves its engine
SAME_PROMPT_RATIO = 1.25  # the same for the engine that has read the prompt of a new session
AVERAGED_TOKENS = 1000  # tokens that an older estimate of a speed is worth
RECOVERY_RATE = 0.01  # recovery of estimates per turn, divided by the number of active turns


class _RoutedSession(NamedTuple):
    engine: int
    prompt: int  # hash of its first ids


class SessionRouter:
    """Router of turns to `num_engines` engines."""

    def __init__(self, num_engines: int) -> None:
        self.active_turns = [0] * num_engines
        self.seconds_per_token: list[float | None] = [None] * num_engines  # None: unknown
        self._sessions: dict[str, _RoutedSession] = {}
        self._prompt_users = Counter[_RoutedSession]()  # sessions of an engine with a prompt

    def route(
        self, session: str, ids: Sequence[int], live: Collection[int]
    ) -> tuple[int, int | None]:
        """Choose one of the engines `live` for a turn after `ids`. Return it, and the engine that
        its session leaves."""
        routed = self._sessions.get(session)
        prompt = hash(tuple(ids)) if routed is None else routed.prompt
        if routed is None:
            cached: Collection[_RoutedSession] = self._prompt_users
            max_ratio = SAME_PROMPT_RATIO
        else:
            cached, max_ratio = {routed}, STAY_RATIO

        def estimate_cost(engine: int) -> float:
            turns = HALF_SPEED_TURNS + self.active_turns[engine]
            seconds = turns * self._get_seconds_per_token(engine)
            return seconds if _RoutedSession(engine, prompt) in cached else seconds * max_ratio

        engine = min(live, key=lambda e: (estimate_cost(e), e))
        self.active_turns[engine] += 1
        if routed is not None and routed.engine == engine:
            return engine, None
        previous_engine = self.forget(session)
        self._sessions[session] = _RoutedSession(engine, prompt)
        self._prompt_users[self._sessions[session]] += 1
        return engine, previous_engine

    def record(self, engine: int, tokens: int, seconds: float) -> None:
        """Record that a turn of `tokens` tokens, 0 if it failed, has ended after `seconds`."""
        self.active_turns[engine] -= 1
        if not tokens:
            return
        estimate = self.seconds_per_token[engine] or seconds / tokens
        estimate = (AVERAGED_TOKENS * estimate + seconds) / (AVERAGED_TOKENS + tokens)
        self._recover_speeds()
        self.seconds_per_token[engine] = estimate

    def forget(self, session: str) -> int | None:
        """Forget a session that has ended. Return its engine, or None for an unknown session."""
        routed = self._sessions.pop(session, None)
        if routed is None:
            return None
        self._prompt_users[routed] -= 1
        if not self._prompt_users[routed]:
            del self._prompt_users[routed]
        return routed.engine

    def _get_seconds_per_token(self, engine: int) -> float:
        """Return the estimate of an engine, or the fastest estimate if it has none yet."""
        estimate = self.seconds_per_token[engine]
        return min(self._estimates, default=1.0) if estimate is None else estimate

    @property
    def _estimates(self) -> list[float]:
        return [estimate for estimate in self.seconds_per_token if estimate is not None]

    def _recover_speeds(self) -> None:
        """Move all estimates towards the fastest, so that an engine that was temporarily slow is
        tried again."""
        fastest = min(self._estimates, default=0.0)
        rate = RECOVERY_RATE / (1 + sum(self.active_turns))
        for engine, estimate in enumerate(self.seconds_per_token):
            if estimate is not None:
                self.seconds_per_token[engine] = estimate + rate * (fastest - estimate)
