"""The choice of an engine for a turn: the one that is expected to end it first.

An engine computes all its turns side by side, so a token takes the longer the more turns there are:
about `slowness` x (turns + ALONE). Slowness is measured for each engine. What an engine has read
before costs nothing, so a session stays where it is, and sessions that begin alike stay together,
until another engine would be done earlier in spite of having to read everything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

ALONE = 64  # turns at which a token takes twice as long as for one: a step reads all weights anyway
READING = 0.1  # of the time of a written token: that of one which is only read
LEARNING = 0.3  # weight of the newest turn in what is known of an engine
FORGETTING = (
    0.01  # of what is known of an engine that is not chosen, while all turns are dealt once
)


@dataclass(slots=True)
class Turn:
    """A turn on its way: its engine, the time at which it began, the number of turns beside it
    then, and the engine that its session has left for it."""

    engine: int
    began: float
    beside: int
    left: int | None


@dataclass(slots=True)
class _Session:
    engine: int
    prompt: int  # hash of the ids that it began with
    read: int = 0  # tokens that its engine knows


@dataclass
class Dealer:
    """A dealer of turns to `engines` engines. Times are seconds of any clock."""

    engines: int
    load: list[int] = field(init=False)  # turns under way
    slowness: list[float | None] = field(init=False)  # seconds a token and turn; None: not known
    turn_tokens: float = 64.0  # of a turn, in the mean
    _sessions: dict[str, _Session] = field(default_factory=dict)
    _prompts: dict[int, dict[int, int]] = field(default_factory=dict)  # prompt: engine: sessions

    def __post_init__(self) -> None:
        self.load = [0] * self.engines
        self.slowness = [None] * self.engines

    def begin(self, session: str, ids: Sequence[int], live: Collection[int], now: float) -> Turn:
        """Choose one of the engines `live` for a turn behind `ids`."""
        known = self._sessions.get(session)
        prompt = hash(tuple(ids)) if known is None else known.prompt
        engine = min(live, key=lambda e: (self._expected(e, session, prompt, len(ids)), e))
        self._forget_a_little(engine)
        left = self._move(session, engine, prompt)
        self.load[engine] += 1
        return Turn(engine, now, self.load[engine], left)

    def end(self, session: str, turn: Turn, ids: int, tokens: int, now: float) -> None:
        """Record that a turn behind `ids` tokens has ended with `tokens` more; 0: nothing came of
        it."""
        beside = (turn.beside + self.load[turn.engine]) / 2
        self.load[turn.engine] -= 1
        if not tokens:
            return
        if session in self._sessions:
            self._sessions[session].read = ids + tokens
        found = (now - turn.began) / tokens / (beside + ALONE)
        old = self.slowness[turn.engine]
        self.slowness[turn.engine] = found if old is None else old + LEARNING * (found - old)
        self.turn_tokens += LEARNING * (tokens - self.turn_tokens)

    def forget(self, session: str) -> int | None:
        """Forget a session that has ended. Returns its engine, None for an unknown session."""
        known = self._sessions.pop(session, None)
        if known is None:
            return None
        here = self._prompts[known.prompt]
        here[known.engine] -= 1
        if not here[known.engine]:
            del here[known.engine]
        if not here:
            del self._prompts[known.prompt]
        return known.engine

    def lose(self, engine: int) -> None:
        """Record that an engine has lost all that it knew, and that nothing is known of it."""
        self.slowness[engine] = None
        for known in self._sessions.values():
            if known.engine == engine:
                known.read = 0

    def _expected(self, engine: int, session: str, prompt: int, length: int) -> float:
        """Return the seconds until a turn behind `length` tokens would end there."""
        known = self._sessions.get(session)
        read = 0
        if known is not None and known.engine == engine:
            read = known.read
        elif known is None and engine in self._prompts.get(prompt, {}):
            read = length
        writing = (self.load[engine] + 1 + ALONE) * self.turn_tokens
        return self._slowness(engine) * (writing + READING * ALONE * (length - read))

    def _slowness(self, engine: int) -> float:
        """Return the slowness of an engine; that of the fastest, if it has not answered yet."""
        found = self.slowness[engine]
        return min(self._measured, default=1.0) if found is None else found

    @property
    def _measured(self) -> list[float]:
        return [one for one in self.slowness if one is not None]

    def _forget_a_little(self, chosen: int) -> None:
        """Move the slowness of the other engines towards the fastest, so that an engine which was
        slow for a while gets a turn again some time."""
        fastest = min(self._measured, default=0.0)
        share = FORGETTING / max(sum(self.load), 1)
        for engine, found in enumerate(self.slowness):
            if found is not None and engine != chosen:
                self.slowness[engine] = found + share * (fastest - found)

    def _move(self, session: str, engine: int, prompt: int) -> int | None:
        """Record where a session is, and return the engine that it leaves."""
        known = self._sessions.get(session)
        if known is not None and known.engine == engine:
            return None
        left = self.forget(session)
        self._sessions[session] = _Session(engine, prompt)
        here = self._prompts.setdefault(prompt, {})
        here[engine] = here.get(engine, 0) + 1
        return left
