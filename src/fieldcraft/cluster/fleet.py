"""Many engines as one: sessions are dealt to them, and what a dead one was asked is asked again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from fieldcraft.cluster.cargo import Cargo
from fieldcraft.cluster.dealing import Dealer
from fieldcraft.cluster.remote import Lost
from fieldcraft.cluster.seats import Seat
from fieldcraft.sampling import Sampling
from fieldcraft.types import Completion, UserError

MOST_DEATHS = 3  # of an engine in a row, without a single answer in between


class Fleet:
    """Engines that hold the same weights; obeys `types.PolicyEngine`. The fleet knows nothing of
    where they are, and reads no clock but that of the event loop.

    Args:
        seats: the engines.
        load: brings together the weights of a version as they are now, while engines sample on.
        tolerance: nats that an engine's log-probabilities may be from the trained model's.
        say: a line for the reader of the run.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        load: Callable[[int], Awaitable[Cargo]],
        tolerance: float,
        say: Callable[[str], None],
    ) -> None:
        self.version = 0
        self.published: dict[str, float] = {}  # what the last publish has cost
        self.lost = 0  # engines that have died so far
        self._seats = seats
        self._load = load
        self._tolerance = tolerance
        self._say = say
        self._dealer = Dealer(len(seats))
        self._cargo: Cargo | None = None  # the newest weights
        self._loading = asyncio.Lock()  # trainers bring them together once
        self._holds: list[Cargo | None] = [None] * len(seats)
        self._lives = [0] * len(seats)
        self._deaths = [0] * len(seats)  # in a row
        self._coming: dict[int, asyncio.Task[None]] = {}  # engines on their way to newer weights
        self._failed: BaseException | None = None
        self._calls = 0

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """Continue `ids` on one of the engines. The sample does not depend on which one, nor on
        whether one dies meanwhile: it follows from the seed and the weights.

        Raises UserError if no engine is left, or one samples from other weights than it should.
        """
        self._calls += 1
        try:
            while True:
                await self._somebody()
                with suppress(Lost):
                    return await self._ask(ids, sampling, session)
        finally:
            self._calls -= 1

    def release(self, session: str) -> None:
        """Forget a session, wherever it is."""
        self._leave(self._dealer.forget(session), session)

    async def sleep(self) -> None:
        """Drop all sessions. Raises RuntimeError while calls are generating."""
        if self._calls:
            raise RuntimeError("the engines cannot sleep while they are generating")
        for engine in self.live:
            try:
                await self._seats[engine].sleep()
            except Lost as lost:
                self._lose(engine, self._lives[engine], lost)

    async def separate(self) -> None:
        """Give the engines weights of their own: if none were published yet, those of now."""
        await self._newest()

    async def publish(self, version: int) -> None:
        """Give all engines the weights as they are now, and prove it. They sample on until the new
        weights are there. Turns under way keep what they have, and go on with the new ones.

        An engine that dies meanwhile gets them when it is back, and nobody waits for it.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        async with self._loading:
            self._cargo, self.version = None, version  # None: the old weights make room
            cargo = self._cargo = await self._load(version)
        self._bring_all()
        while late := [self._coming[e] for e in self._coming if not self._dead(e)]:
            await self._one_of(late)
        await self._somebody()
        self.published = {
            "publish_seconds": clock() - began,
            "publish_bytes": float(cargo.bytes * len(self.live)),
            "engines_lost": float(self.lost),
        }

    @property
    def live(self) -> list[int]:
        """Engines that can be asked."""
        return [engine for engine, cargo in enumerate(self._holds) if cargo is not None]

    async def close(self) -> None:
        """End what is on its way to engines."""
        coming = list(self._coming.values())
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)

    # ---- turns

    async def _ask(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        clock, tokens = asyncio.get_running_loop().time, 0
        turn = self._dealer.begin(session, ids, self.live, clock())
        self._leave(turn.left, session)
        engine, life = turn.engine, self._lives[turn.engine]
        try:
            done = await self._seats[engine].generate(ids, sampling, session)
            tokens, self._deaths[engine] = len(done.ids), 0
            return done
        except Lost as lost:
            self._lose(engine, life, lost)
            raise
        finally:
            self._dealer.end(session, turn, len(ids), tokens, clock())

    def _leave(self, engine: int | None, session: str) -> None:
        if engine is not None and self._holds[engine] is not None:
            self._seats[engine].release(session)

    # ---- weights

    async def _newest(self) -> Cargo:
        async with self._loading:
            if self._cargo is None:
                self._cargo = await self._load(self.version)
            return self._cargo

    async def _somebody(self) -> None:
        """Wait until an engine can be asked."""
        self._raise_what_failed()
        if not self.live:
            self._bring_all()
        while not self.live:
            if not self._coming:
                raise UserError(
                    f"no engine is left: each died {MOST_DEATHS} times without an answer, and Ray's"
                    " log of this machine says of what (/tmp/ray/session_latest/logs)."
                )
            await self._one_of(list(self._coming.values()))

    async def _one_of(self, coming: Sequence[asyncio.Task[None]]) -> None:
        await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)  # what is done says so by a callback
        self._raise_what_failed()

    def _raise_what_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _bring_all(self) -> None:
        for engine in range(len(self._seats)):
            self._bring(engine)

    def _bring(self, engine: int) -> None:
        """Begin to give an engine the newest weights."""
        if engine in self._coming or self._deaths[engine] >= MOST_DEATHS:
            return
        task = asyncio.create_task(self._until_it_holds(engine), name=self._seats[engine].name)
        self._coming[engine] = task

        def ended(task: asyncio.Task[None]) -> None:
            del self._coming[engine]
            if not task.cancelled():
                self._failed = self._failed or task.exception()

        task.add_done_callback(ended)

    async def _until_it_holds(self, engine: int) -> None:
        seat = self._seats[engine]
        while self._holds[engine] is None or self._holds[engine] is not self._cargo:
            if self._deaths[engine] >= MOST_DEATHS:
                return
            cargo, life = await self._newest(), self._lives[engine]
            try:
                await seat.ready()
                told = await seat.hold(cargo)
            except Lost as lost:
                self._lose(engine, life, lost)
                continue
            self._refuse_other_weights(seat, cargo.proof.distance(told))
            self._holds[engine] = cargo

    def _refuse_other_weights(self, seat: Seat, gap: float) -> None:
        if math.isnan(gap) or gap > self._tolerance:
            raise UserError(
                f"{seat.name} does not sample from the weights that are trained: its"
                f" log-probabilities are {gap:.3g} nats from theirs, more than {self._tolerance:g}:"
                " look whether its device and that of the trainer compute alike."
            )

    # ---- deaths

    def _dead(self, engine: int) -> bool:
        """Return whether an engine has died and is not back yet."""
        return self._holds[engine] is None and self._deaths[engine] > 0

    def _lose(self, engine: int, life: int, lost: Lost) -> None:
        """Record that an engine has died in its life number `life`, which may be known already."""
        if life != self._lives[engine]:
            return
        self._lives[engine] += 1
        self._deaths[engine] += 1
        self.lost += 1
        self._holds[engine] = None
        self._dealer.lose(engine)
        what = "started again" if self._deaths[engine] < MOST_DEATHS else "given up"
        self._say(
            f"{self._seats[engine].name} has died ({lost}); it is {what}, and what it was asked for"
            " is asked again"
        )
        self._bring(engine)
