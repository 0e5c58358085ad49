"""Sampling that does not wait: asynchronous reinforcement learning.

Groups of rollouts are always under way, in a line. A step trains on the first ones of the line, in
a thread of its own, while the others are sampled on. Then the engine gets the new weights, and
every unfinished turn is continued with them.

How old a rollout can be is bounded where it begins: in the line are never more groups than the next
1 + `max_staleness` steps need (AReaL, arXiv 2505.24298, section 5.1). Groups are trained in the
order in which they began. In the order in which they end, those without calls would come first.

A slow rollout is given up, and its group is trained without it: for the slowest twentieth of a step
the trainer waits as long again as for all the others, and no longer.

The clock is that of the event loop, so that a loop with virtual time can simulate all of this
(`scaling/`).
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any

import torch

from fieldcraft.records.events import TrajectoryDone
from fieldcraft.tools.threads import interrupt_thread
from fieldcraft.train.epochs import draw
from fieldcraft.train.rollout_metrics import staleness
from fieldcraft.train.sampler import Group, Sampled, Sampler, T, simulates
from fieldcraft.types import Trajectory

FEWEST = 2  # complete rollouts with which a group is trained without the others
SLOW = 0.05  # of a step's rollouts, which it may drop because they are not complete


@dataclass(eq=False)
class Running:
    """A group from its first token until it is trained. `version` is the policy that it began with.

    Once it has rewards, `group` is what is trained, and `sampled` all that was sampled for it.
    """

    place: int  # of its question in the stream of questions
    version: int
    members: Sequence[asyncio.Task[Trajectory]]
    playing: asyncio.Task[None] = field(init=False)  # up to its rewards
    group: Group | None = None
    sampled: Sequence[Trajectory] = ()

    @property
    def unfinished(self) -> list[asyncio.Task[Trajectory]]:
        return [member for member in self.members if not member.done()]


@dataclass(kw_only=True)
class Stream(Sampler):
    """A sampler that works while a step is trained. What it samples depends on how long everything
    takes.

    `threads` are those of a CPU for training.
    """

    threads: int = 1
    line: list[Running] = field(default_factory=list)  # in the order in which they began
    again: list[int] = field(default_factory=list)  # places that were begun before a kill
    next: int = 0  # the first place that was not begun
    taken: int = 0  # groups that are being trained
    dropped: int = 0  # rollouts since the last step
    useless: list[Running] = field(default_factory=list)  # groups since then that teach nothing
    moved: asyncio.Event = field(default_factory=asyncio.Event)  # a rollout or a group has ended

    _busy: threading.Thread | None = None  # that of the learner while it works

    async def open(self) -> None:
        await self.engine.separate()
        # torch has a number of threads for each thread that calls it.
        threads = partial(torch.set_num_threads, self.threads)
        self._trainer = ThreadPoolExecutor(1, "trainer", threads)

    async def sample(self, number: int) -> Sampled:
        """Wait for the groups of step `number`, those that began first.

        Dynamic sampling replaces a group that teaches nothing as soon as it is scored, at the end
        of the line. After `max_batches` times as many groups as a step needs it takes what there
        is.

        Raises what a rollout or a reward raised since the last step.
        """
        s, clock = self.settings, asyncio.get_running_loop().time
        began = clock()
        await self.ensure(number)
        await self._first_scored(began)
        taken = [running for running in self.line[: s.questions] if running.group is not None]
        self.line = [running for running in self.line if running not in taken]
        self._drop_old(number)
        useless, dropped = self.useless, self.dropped
        self.taken, self.useless, self.dropped = len(taken), [], 0
        groups = [running.group for running in taken if running.group is not None]
        return Sampled(
            groups,
            [trajectory for running in (*useless, *taken) for trajectory in running.sampled],
            ceil((len(useless) + len(taken)) / s.questions),
            {
                **staleness(groups, number),
                "dropped": dropped,
                "waited_seconds": clock() - began,
            },
        )

    async def train(self, learn: Callable[[], T]) -> T:
        """Let the learner work in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._trainer, self._learned, learn)

    def _learned(self, learn: Callable[[], T]) -> T:
        self._busy = threading.current_thread()
        try:
            return learn()
        finally:
            self._busy = None

    async def publish(self, version: int) -> None:
        await super().publish(version)
        self.taken = 0
        self._fill()

    async def close(self) -> None:
        """Give up all rollouts, and a step that is being trained: nothing of it is kept."""
        playing = [running.playing for running in self.line]
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        if self._busy is not None:
            interrupt_thread(self._busy)
        self._trainer.shutdown()

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the stream of questions. The line is lost in a kill, and its
        questions are asked again."""
        line = [running.place for running in self.line]
        return {"next": self.next, "again": sorted([*line, *self.again])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.again = state["next"], list(state["again"])

    # ---- the line

    def _fill(self) -> None:
        """Begin as many groups as there may be."""
        s = self.settings
        assert self.version is not None
        ahead = min(s.asynchronous.max_staleness, s.steps - 1 - self.version)
        for _ in range(s.questions * (1 + ahead) - self.taken - len(self.line)):
            if self.again:
                self._begin(self.again.pop(0), self.version)
            else:
                self._begin(self.next, self.version)
                self.next += 1

    def _begin(self, place: int, version: int) -> None:
        s = self.settings
        batch, index = divmod(place, s.questions)
        chosen = draw(self.seed, batch, len(self.tasks), s.questions)
        tasks = [self.tasks[i] for i in chosen]
        env = self.env_at(version)
        play = self.players(tasks, batch, env, simulated=simulates(s, batch))[index]

        async def one(key: str) -> Trajectory:
            trajectory = await play(tasks[index], key)
            self.emit(TrajectoryDone(self.name, trajectory))
            return trajectory

        members = [asyncio.create_task(one(f"{place}/{g}")) for g in range(self.size)]
        running = Running(place, version, members)
        running.playing = asyncio.create_task(self._play(running))
        self.line.append(running)
        for task in (*members, running.playing):
            task.add_done_callback(lambda _: self.moved.set())

    async def _play(self, running: Running) -> None:
        """Play a group from its first token to its rewards. It leaves the line if it is of no
        use."""
        members = running.members
        try:
            await asyncio.wait(members, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for member in running.unfinished:
                member.cancel()
            await asyncio.gather(*members, return_exceptions=True)
        done = [member.result() for member in members if not member.cancelled()]
        self.dropped += len(members) - len(done)
        if len(done) >= min(FEWEST, len(members)):
            await self.rubric.prepare(done)
            await self.rubric_at(running.version).score(done)
            running.sampled = done
            group = self.cut(done, random.Random(f"resample:{self.seed}:{running.place}"))
            if self.teaches(group):
                running.group = group
                return
            self.useless.append(running)
        else:
            self.dropped += len(done)
        self.line.remove(running)
        self._fill()

    async def _first_scored(self, began: float) -> None:
        """Wait for the groups of a step since the time `began`, but not for ever."""
        s, clock = self.settings, asyncio.get_running_loop().time
        patience, may_drop = None, ceil(SLOW * s.questions * self.size)
        while True:
            self.moved.clear()
            for running in self.line:
                if running.playing.done():
                    running.playing.result()  # raises what it raised: then it is still in the line
            first = self.line[: s.questions]
            scored = sum(running.group is not None for running in first)
            if scored == s.questions or scored + len(self.useless) >= s.questions * s.max_batches:
                return
            slow = [m for running in first for m in running.unfinished if not m.cancelling()]
            delay = None
            if 0 < len(slow) <= may_drop:
                patience = patience or 2 * clock() - began
                delay = patience - clock()
                if delay <= 0:
                    for member in slow:
                        member.cancel()
                    may_drop -= len(slow)  # groups that move up are not given up as well
                    delay = None
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self.moved.wait()

    def _drop_old(self, number: int) -> None:
        """Drop groups that would be too old for the next step, as this one had fewer than it
        needs."""
        for running in list(self.line):
            if number - running.version >= self.settings.asynchronous.max_staleness:
                self.line.remove(running)
                self.dropped += len(running.members)
                running.playing.cancel()
