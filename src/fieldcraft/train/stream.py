"""Sampling that does not wait: asynchronous reinforcement learning.

Groups of rollouts are always under way. A step trains on the first ones that are complete, in a
thread of its own, while the others are sampled on. Then the engine gets the new weights, and every
unfinished turn is continued with them.

How old a rollout can be is bounded where it begins: sampled or waiting are never more groups than
the next 1 + `max_staleness` steps need (AReaL, arXiv 2505.24298, section 5.1). Only a slow rollout
can still become too old. So when a group could not wait for another step, it is trained without
those of its rollouts that are not complete; these are dropped, and counted. They are the ones with
many calls, so a step drops few of them and waits for the others.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any

import torch

from fieldcraft.records.events import TrajectoryDone
from fieldcraft.train.epochs import draw
from fieldcraft.train.rollout_metrics import staleness
from fieldcraft.train.sampler import Group, Sampled, Sampler, T, simulates
from fieldcraft.types import Trajectory

FEWEST = 2  # complete rollouts with which a group is trained without the others
SLOW = 0.05  # of a step's rollouts, which it may drop because they are not complete


@dataclass(eq=False)
class Running:
    """A group that is sampled. `version` is the policy that it began with."""

    place: int  # of its question in the stream of questions
    version: int
    members: Sequence[asyncio.Task[Trajectory]]
    playing: asyncio.Task[None]  # up to its rewards

    def cut_short(self) -> None:
        """Its unfinished rollouts are given up."""
        for member in self.members:
            member.cancel()


@dataclass(frozen=True, slots=True)
class Ready:
    """A group with rewards: what is trained, and all that was sampled for it."""

    place: int
    version: int
    group: Group
    sampled: Sequence[Trajectory]


@dataclass(kw_only=True)
class Stream(Sampler):
    """Samples while a step is trained. What it samples depends on how long everything takes.

    `threads` are those of a CPU for training.
    """

    threads: int = 1
    running: dict[int, Running] = field(default_factory=dict)  # by place
    ready: list[Ready] = field(default_factory=list)
    again: list[int] = field(default_factory=list)  # places that were begun before a kill
    next: int = 0  # the first place that was not begun
    taken: int = 0  # groups that are being trained
    dropped: int = 0  # rollouts since the last step
    useless: list[Ready] = field(default_factory=list)  # groups since then that teach nothing
    moved: asyncio.Event = field(default_factory=asyncio.Event)  # a rollout or a group has ended

    async def open(self) -> None:
        await self.engine.separate()
        # torch has a number of threads for each thread that calls it.
        threads = partial(torch.set_num_threads, self.threads)
        self._trainer = ThreadPoolExecutor(1, "trainer", threads)

    async def sample(self, number: int) -> Sampled:
        """The groups of step `number`, those that began first; waits until enough are complete, and
        nearly all rollouts that no later step may train.

        Dynamic sampling replaces a group that teaches nothing as soon as it is scored. After
        `max_batches` times as many groups as a step needs it takes what there is.

        Raises what a rollout or a reward raised since the last step.
        """
        s, began = self.settings, time.perf_counter()
        await self.ensure(number)
        await self._until(lambda: self._are_enough() and self._few_are_late(number))
        await self._cut_short(number)
        self.ready.sort(key=lambda ready: ready.place)
        taken, self.ready = self.ready[: s.questions], self.ready[s.questions :]
        self._drop_old(number)
        useless, dropped = self.useless, self.dropped
        self.taken, self.useless, self.dropped = len(taken), [], 0
        groups = [ready.group for ready in taken]
        return Sampled(
            groups,
            [trajectory for ready in (*useless, *taken) for trajectory in ready.sampled],
            ceil((len(useless) + len(taken)) / s.questions),
            {
                **staleness(groups, number),
                "dropped": dropped,
                "waited_seconds": time.perf_counter() - began,
            },
        )

    async def train(self, learn: Callable[[], T]) -> T:
        """Let the learner work in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._trainer, learn)

    async def publish(self, version: int) -> None:
        await super().publish(version)
        self.taken = 0
        self._fill()

    async def close(self) -> None:
        """Give up all rollouts. Waits for the learner, which cannot be interrupted."""
        playing = [running.playing for running in self.running.values()]
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        self._trainer.shutdown()

    def state_dict(self) -> dict[str, Any]:
        """The place in the stream of questions. What is sampled or waits for a step is lost in a
        kill, and its questions are asked again."""
        waiting = [ready.place for ready in self.ready]
        return {"next": self.next, "again": sorted([*self.running, *waiting, *self.again])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.again = state["next"], list(state["again"])

    # ---- groups

    def _fill(self) -> None:
        """Begin as many groups as there may be."""
        s = self.settings
        assert self.version is not None
        ahead = min(s.asynchronous.max_staleness, s.steps - 1 - self.version)
        there = self.taken + len(self.ready) + len(self.running)
        for _ in range(s.questions * (1 + ahead) - there):
            if self.again:
                self._begin(self.again.pop(0), self.version)
            else:
                self._begin(self.next, self.version)
                self.next += 1

    def _begin(self, place: int, version: int) -> None:
        s = self.settings
        [index] = draw(self.seed, place, len(self.tasks), 1)
        play = self.player(simulated=simulates(s, place // s.questions))

        async def one(key: str) -> Trajectory:
            trajectory = await play(self.tasks[index], key)
            self.emit(TrajectoryDone(self.name, trajectory))
            return trajectory

        members = [asyncio.create_task(one(f"{place}/{g}")) for g in range(self.size)]
        playing = asyncio.create_task(self._play(place, version, members))
        self.running[place] = Running(place, version, members, playing)
        for task in (*members, playing):
            task.add_done_callback(lambda _: self.moved.set())

    async def _play(
        self, place: int, version: int, members: Sequence[asyncio.Task[Trajectory]]
    ) -> None:
        """A group from its first token to its rewards."""
        try:
            await asyncio.wait(members, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for member in members:
                member.cancel()
            await asyncio.gather(*members, return_exceptions=True)
        done = [member.result() for member in members if not member.cancelled()]
        self.dropped += len(members) - len(done)
        if len(done) >= min(FEWEST, len(members)):
            await self.rubric.prepare(done)
            self.rubric.score(done)
            group = self.cut(done, random.Random(f"resample:{self.seed}:{place}"))
            kept = self.ready if self.teaches(group) else self.useless
            kept.append(Ready(place, version, group, done))
        else:
            self.dropped += len(done)
        del self.running[place]
        self._fill()

    async def _until(self, met: Callable[[], bool]) -> None:
        """Wait for rollouts. A group that has failed stays among the running ones."""
        while True:
            self.moved.clear()
            for running in self.running.values():
                if running.playing.done():
                    running.playing.result()
            if met():
                return
            await self.moved.wait()

    def _are_enough(self) -> bool:
        s, ready = self.settings, len(self.ready)
        return ready >= s.questions or len(self.useless) + ready >= s.questions * s.max_batches

    def _few_are_late(self, number: int) -> bool:
        unfinished = sum(not m.done() for group in self._late(number) for m in group.members)
        return unfinished <= ceil(SLOW * self.settings.questions * self.size)

    def _late(self, number: int) -> list[Running]:
        """Groups that would be too old for the next step."""
        return [running for running in self.running.values() if self._is_last(running, number)]

    async def _cut_short(self, number: int) -> None:
        late = self._late(number)
        for running in late:
            running.cut_short()
        await asyncio.gather(*(running.playing for running in late))

    def _drop_old(self, number: int) -> None:
        """Groups for which this step had no room, and which are too old for the next one."""
        for ready in self.ready:
            if self._is_last(ready, number):
                self.dropped += len(ready.sampled)
        self.ready = [ready for ready in self.ready if not self._is_last(ready, number)]

    def _is_last(self, group: Running | Ready, number: int) -> bool:
        """Whether a group can be trained in step `number` at the latest."""
        return number - group.version >= self.settings.asynchronous.max_staleness
