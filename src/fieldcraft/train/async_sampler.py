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

from fieldcraft.records.events import TrajectoryCompleted
from fieldcraft.tools.threads import interrupt_thread
from fieldcraft.train.epochs import draw_epoch_batch
from fieldcraft.train.rollout_metrics import compute_staleness
from fieldcraft.train.sampler import (
    RolloutGroup,
    RolloutSampler,
    StepRollouts,
    T,
    is_simulated_step,
)
from fieldcraft.types import Trajectory

MIN_COMPLETE_ROLLOUTS = 2  # complete rollouts with which a group is trained without the others
MAX_DROPPED_SHARE = 0.05  # of a step's rollouts, which it may drop because they are not complete


@dataclass(eq=False)
class PendingGroup:
    """A group from its first token until it is trained. `version` is the policy that it began with.

    Once it has rewards, `group` is what is trained, and `trajectories` all that was sampled for it.
    """

    position: int  # of its question in the stream of questions
    version: int
    rollout_tasks: Sequence[asyncio.Task[Trajectory]]
    group_task: asyncio.Task[None] = field(init=False)  # up to its rewards
    group: RolloutGroup | None = None
    trajectories: Sequence[Trajectory] = ()

    @property
    def unfinished(self) -> list[asyncio.Task[Trajectory]]:
        return [member for member in self.rollout_tasks if not member.done()]


@dataclass(kw_only=True)
class AsyncRolloutSampler(RolloutSampler):
    """A sampler that works while a step is trained. What it samples depends on how long everything
    takes.

    `threads` are those of a CPU for training.
    """

    threads: int = 1
    queue: list[PendingGroup] = field(default_factory=list)  # in the order in which they began
    requeued: list[int] = field(default_factory=list)  # places that were begun before a kill
    next_position: int = 0  # the first place that was not begun
    in_training: int = 0  # groups that are being trained
    rollouts_dropped: int = 0  # rollouts since the last step
    no_signal_groups: list[PendingGroup] = field(
        default_factory=list
    )  # groups since then that teach nothing
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # a rollout or a group has ended

    _learner_thread: threading.Thread | None = None  # that of the learner while it works

    async def open(self) -> None:
        await self.engine.snapshot_weights()
        # torch has a number of threads for each thread that calls it.
        threads = partial(torch.set_num_threads, self.threads)
        self._executor = ThreadPoolExecutor(1, "trainer", threads)

    async def sample(self, number: int) -> StepRollouts:
        """Wait for the groups of step `number`, those that began first.

        Dynamic sampling replaces a group that teaches nothing as soon as it is scored, at the end
        of the line. After `max_sampling_batches` times as many groups as a step needs it takes what
        there is.

        Raises what a rollout or a reward raised since the last step.
        """
        s, clock = self.settings, asyncio.get_running_loop().time
        start = clock()
        await self.ensure_version(number)
        await self._wait_for_scored(start)
        trained = [
            pending for pending in self.queue[: s.questions_per_step] if pending.group is not None
        ]
        self.queue = [pending for pending in self.queue if pending not in trained]
        self._drop_stale(number)
        no_signal, dropped = self.no_signal_groups, self.rollouts_dropped
        self.in_training, self.no_signal_groups, self.rollouts_dropped = len(trained), [], 0
        groups = [pending.group for pending in trained if pending.group is not None]
        return StepRollouts(
            groups,
            [
                trajectory
                for pending in (*no_signal, *trained)
                for trajectory in pending.trajectories
            ],
            ceil((len(no_signal) + len(trained)) / s.questions_per_step),
            {
                **compute_staleness(groups, number),
                "rollouts_dropped": dropped,
                "trainer_wait_seconds": clock() - start,
            },
        )

    async def train(self, learn: Callable[[], T]) -> T:
        """Let the learner work in its thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, self._run_learner, learn
        )

    def _run_learner(self, learn: Callable[[], T]) -> T:
        self._learner_thread = threading.current_thread()
        try:
            return learn()
        finally:
            self._learner_thread = None

    async def publish(self, version: int) -> None:
        await super().publish(version)
        self.in_training = 0
        self._fill_queue()

    async def close(self) -> None:
        """Give up all rollouts, and a step that is being trained: nothing of it is kept."""
        group_tasks = [pending.group_task for pending in self.queue]
        for task in group_tasks:
            task.cancel()
        await asyncio.gather(*group_tasks, return_exceptions=True)
        if self._learner_thread is not None:
            interrupt_thread(self._learner_thread)
        self._executor.shutdown()

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the stream of questions. The line is lost in a kill, and its
        questions are asked again."""
        queued = [pending.position for pending in self.queue]
        return {"next": self.next_position, "again": sorted([*queued, *self.requeued])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next_position, self.requeued = state["next"], list(state["again"])

    # ---- the line

    def _fill_queue(self) -> None:
        """Begin as many groups as there may be."""
        s = self.settings
        assert self.version is not None
        ahead = min(s.asynchronous.max_staleness, s.steps - 1 - self.version)
        for _ in range(s.questions_per_step * (1 + ahead) - self.in_training - len(self.queue)):
            if self.requeued:
                self._start_group(self.requeued.pop(0), self.version)
            else:
                self._start_group(self.next_position, self.version)
                self.next_position += 1

    def _start_group(self, position: int, version: int) -> None:
        s = self.settings
        batch, index = divmod(position, s.questions_per_step)
        indices = draw_epoch_batch(self.seed, batch, len(self.tasks), s.questions_per_step)
        tasks = [self.tasks[i] for i in indices]
        env = self.env_at(version)
        run = self.make_rollout_callables(tasks, batch, env, simulated=is_simulated_step(s, batch))[
            index
        ]

        async def run_member(key: str) -> Trajectory:
            trajectory = await run(tasks[index], key)
            self.emit(TrajectoryCompleted(self.name, trajectory))
            return trajectory

        rollout_tasks = [
            asyncio.create_task(run_member(f"{position}/{g}"))
            for g in range(self.rollouts_per_question)
        ]
        pending = PendingGroup(position, version, rollout_tasks)
        pending.group_task = asyncio.create_task(self._run_group(pending))
        self.queue.append(pending)
        for task in (*rollout_tasks, pending.group_task):
            task.add_done_callback(lambda _: self.changed.set())

    async def _run_group(self, pending: PendingGroup) -> None:
        """Play a group from its first token to its rewards. It leaves the line if it is of no
        use."""
        rollout_tasks = pending.rollout_tasks
        try:
            await asyncio.wait(rollout_tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for member in pending.unfinished:
                member.cancel()
            await asyncio.gather(*rollout_tasks, return_exceptions=True)
        done = [member.result() for member in rollout_tasks if not member.cancelled()]
        self.rollouts_dropped += len(rollout_tasks) - len(done)
        if len(done) >= min(MIN_COMPLETE_ROLLOUTS, len(rollout_tasks)):
            await self.rubric.score_async_rewards(done)
            await self.rubric_at(pending.version).score(done)
            pending.trajectories = done
            group = self.downsample(done, random.Random(f"resample:{self.seed}:{pending.position}"))
            if self.has_signal(group):
                pending.group = group
                return
            self.no_signal_groups.append(pending)
        else:
            self.rollouts_dropped += len(done)
        self.queue.remove(pending)
        self._fill_queue()

    async def _wait_for_scored(self, start: float) -> None:
        """Wait for the groups of a step since the time `start`, but not for ever."""
        s, clock = self.settings, asyncio.get_running_loop().time
        deadline, max_dropped = (
            None,
            ceil(MAX_DROPPED_SHARE * s.questions_per_step * self.rollouts_per_question),
        )
        while True:
            self.changed.clear()
            for pending in self.queue:
                if pending.group_task.done():
                    pending.group_task.result()  # raises what it raised: it is still queued then
            first = self.queue[: s.questions_per_step]
            scored = sum(pending.group is not None for pending in first)
            if (
                scored == s.questions_per_step
                or scored + len(self.no_signal_groups)
                >= s.questions_per_step * s.max_sampling_batches
            ):
                return
            slow = [m for pending in first for m in pending.unfinished if not m.cancelling()]
            delay = None
            if 0 < len(slow) <= max_dropped:
                deadline = deadline or 2 * clock() - start
                delay = deadline - clock()
                if delay <= 0:
                    for member in slow:
                        member.cancel()
                    max_dropped -= len(slow)  # groups that move up are not given up as well
                    delay = None
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self.changed.wait()

    def _drop_stale(self, number: int) -> None:
        """Drop groups that would be too old for the next step, as this one had fewer than it
        needs."""
        for pending in list(self.queue):
            if number - pending.version >= self.settings.asynchronous.max_staleness:
                self.queue.remove(pending)
                self.rollouts_dropped += len(pending.rollout_tasks)
                pending.group_task.cancel()
