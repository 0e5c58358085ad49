"""Sampling for asynchronous reinforcement learning, concurrent with training.

Groups of rollouts are always in flight, in a queue. A step trains on the first groups of the queue,
in a separate thread, while sampling of the others continues. Then the engine gets the new weights,
and every unfinished turn is continued with them.

Staleness is bounded when a group starts: the queue never has more groups than the next 1 +
`max_staleness` steps need (AReaL, arXiv 2505.24298, section 5.1). Groups are trained in the order
in which they started. In the order of completion, groups without calls would come first.

Slow rollouts are dropped, and their groups are trained without them: the trainer waits for the
slowest twentieth of a step at most as long again as for all the others.

The clock is the event loop's, so that a loop with virtual time can simulate the sampler
(`bench/simulation/`).
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

MIN_COMPLETE_ROLLOUTS = 2  # complete rollouts that suffice to train a group
MAX_DROPPED_SHARE = 0.05  # share of a step's rollouts that may be dropped as incomplete


@dataclass(eq=False)
class PendingGroup:
    """Group from its first token until it is trained. `version` is the policy version at its start.

    Once it has rewards, `group` contains the trained rollouts, and `trajectories` all sampled ones.
    """

    position: int  # of its question in the stream of questions
    version: int
    rollout_tasks: Sequence[asyncio.Task[Trajectory]]
    group_task: asyncio.Task[None] = field(init=False)  # completes with the rewards
    group: RolloutGroup | None = None
    trajectories: Sequence[Trajectory] = ()

    @property
    def unfinished(self) -> list[asyncio.Task[Trajectory]]:
        return [member for member in self.rollout_tasks if not member.done()]


@dataclass(kw_only=True)
class AsyncRolloutSampler(RolloutSampler):
    """Sampler that runs while a step is trained. Its samples depend on timing.

    `threads` is the number of CPU threads for training.
    """

    threads: int = 1
    queue: list[PendingGroup] = field(default_factory=list)  # in starting order
    requeued: list[int] = field(default_factory=list)  # positions that were started before a kill
    next_position: int = 0  # first position that was not started
    in_training: int = 0  # groups in training
    rollouts_dropped: int = 0  # dropped since the last step
    no_signal_groups: list[PendingGroup] = field(
        default_factory=list
    )  # groups without signal since the last step
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # a rollout or group has ended

    _learner_thread: threading.Thread | None = None  # thread of the learner while it runs

    async def open(self) -> None:
        await self.engine.snapshot_weights()
        # torch's number of threads is set per calling thread.
        threads = partial(torch.set_num_threads, self.threads)
        self._executor = ThreadPoolExecutor(1, "trainer", threads)

    async def sample(self, number: int) -> StepRollouts:
        """Wait for the groups of step `number`, which are the first ones in the queue.

        Dynamic sampling replaces a group without signal as soon as it is scored, at the end of the
        queue. After `max_sampling_batches` times as many groups as a step needs, the step uses the
        available ones.

        Raises the exception of a rollout or a reward since the last step.
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
        """Run the learner in its thread."""
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
        """Abort a step in training without saving it, and cancel all rollouts."""
        # First, because a second interrupt can end the wait for the rollouts.
        if self._learner_thread is not None:
            interrupt_thread(self._learner_thread)
        try:
            group_tasks = [pending.group_task for pending in self.queue]
            for task in group_tasks:
                task.cancel()
            await asyncio.gather(*group_tasks, return_exceptions=True)
        finally:
            self._executor.shutdown()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stream of questions. The queue is lost in a kill, and its
        questions are asked again."""
        queued = [pending.position for pending in self.queue]
        return {"next": self.next_position, "again": sorted([*queued, *self.requeued])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next_position, self.requeued = state["next"], list(state["again"])

    # ---- queue

    def _fill_queue(self) -> None:
        """Start as many groups as staleness permits."""
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
        simulated = is_simulated_step(s, batch)
        env = self.select_environments(tasks, batch, version, simulated=simulated)[index]

        async def run_member(key: str) -> Trajectory:
            with self.timeline.collect_spans():
                trajectory = await env.run(tasks[index], self.policy, key)
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
        """Run a group from its first token to its rewards. It is removed from the queue if it has
        no signal or too few rollouts."""
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
        """Wait for the groups of a step, which started waiting at time `start`, and cancel slow
        rollouts after a deadline."""
        s, clock = self.settings, asyncio.get_running_loop().time
        deadline, max_dropped = (
            None,
            ceil(MAX_DROPPED_SHARE * s.questions_per_step * self.rollouts_per_question),
        )
        while True:
            self.changed.clear()
            for pending in self.queue:
                if pending.group_task.done():
                    pending.group_task.result()  # re-raises its exception: it is still queued then
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
                    max_dropped -= len(slow)  # groups that move up do not lose rollouts
                    delay = None
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self.changed.wait()

    def _drop_stale(self, number: int) -> None:
        """Drop groups that would be too stale for the next step, which happens after a step with
        too few groups."""
        for pending in list(self.queue):
            if number - pending.version >= self.settings.asynchronous.max_staleness:
                self.queue.remove(pending)
                self.rollouts_dropped += len(pending.rollout_tasks)
                pending.group_task.cancel()
