"""Sampling that does not wait for the trainer, with scripted rollouts and slow tools."""

import asyncio
import random
import threading
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_parts import Parts, at_once, never

from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.train.async_sampler import AsyncRolloutSampler
from fieldcraft.train.epochs import draw_epoch_batch
from fieldcraft.train.sampler import RolloutGroup
from fieldcraft.types import Author, ToolError, Trajectory, UserError


def ages(groups: Sequence[RolloutGroup], number: int) -> list[int]:
    return [
        number - version
        for group in groups
        for trajectory in group
        for segment in trajectory.segments
        if segment.author is Author.POLICY
        for version, _ in segment.versions
    ]


def test_the_same_policy_is_sampled_and_trained_in_order_if_nothing_takes_time() -> None:
    parts = Parts(max_staleness=2)
    rows = parts.run()
    assert parts.engine.separated
    places = parts.learner.places
    assert len(places) == len(set(places)) == 12
    assert [row["staleness_max"] for row in rows] == [0, 1, 2, 2, 2, 2]
    assert [row["rollouts_dropped"] for row in rows] == [0] * 6
    assert parts.tool.calls == 12  # no surplus rollouts were sampled
    assert [row["em"] for row in rows] == [pytest.approx(1 / 3)] * 6


def test_rollouts_go_on_while_the_trainer_works() -> None:
    """The trainer waits for a search that ends only after training has started."""
    parts = Parts()
    trains, searched = threading.Event(), threading.Event()

    async def until(call: int) -> None:
        if call == 3:
            await asyncio.to_thread(trains.wait)
            searched.set()

    def learning() -> None:
        trains.set()
        assert searched.wait(timeout=300)  # fails if sampling waits for the trainer

    parts.tool.until, parts.learner.learning = until, learning
    parts.run_in_a_thread()
    assert searched.is_set()


def test_weights_are_exchanged_while_turns_are_under_way() -> None:
    """The searches of the second batch take as long as the first step. Their rollouts therefore
    start with one version and end with the next.
    """
    parts = Parts(steps=3)
    published = [asyncio.Event() for _ in range(3)]
    publish = parts.engine.update_weights

    async def update_and_record(version: int) -> None:
        await publish(version)
        if version < 3:
            published[version].set()

    async def until(call: int) -> None:
        await published[call // 2].wait()

    parts.engine.update_weights, parts.tool.until = update_and_record, until  # type: ignore[method-assign]
    parts.run()
    spans = [
        [segment.versions[0][0] for segment in group[0].segments if segment.versions]
        for groups in parts.learner.steps
        for group in groups
    ]
    assert spans == [[0, 0], [0, 0], [0, 1], [0, 1], [1, 2], [1, 2]]


def test_a_slow_rollout_delays_nobody_and_its_group_is_trained_without_it() -> None:
    async def until(call: int) -> None:
        await (never if call == 1 else at_once)(call)

    parts = Parts(until, max_staleness=2)
    rows = parts.run()
    assert [row["rollouts_dropped"] for row in rows] == [1, 0, 0, 0, 0, 0]
    [short] = [group for groups in parts.learner.steps for group in groups if len(group) < 3]
    assert short is parts.learner.steps[0][1]
    assert [t.answer for t in short] == ["Southport", "Southport"]
    assert len(set(parts.learner.places)) == 12
    assert parts.tool.given_up == 1


def test_a_step_drops_few_and_waits_for_the_others() -> None:
    """A twentieth of six rollouts, rounded up, is one. Two are late, so the step waits for one."""

    async def until(call: int) -> None:
        if call == 2:
            await asyncio.sleep(0.3)
        await (never if call == 3 else at_once)(call)

    parts = Parts(until)
    rows = parts.run()
    assert [row["rollouts_dropped"] for row in rows] == [0, 1, 0, 0, 0, 0]
    assert rows[1]["trainer_wait_seconds"] == pytest.approx(2 * 0.3)  # as long again as the step
    assert [len(group) for group in parts.learner.steps[1]] == [3, 2]


def test_a_group_that_has_nothing_to_compare_is_dropped_whole() -> None:
    """One of the two rollouts of a question never ends, so other questions replace it."""

    async def until(call: int) -> None:
        await (never if call == 0 else at_once)(call)

    parts = Parts(until, group_size=2)
    rows = parts.run()
    assert sum(row["rollouts_dropped"] for row in rows) == 2
    assert all(len(group) == 2 for groups in parts.learner.steps for group in groups)
    assert [len(groups) for groups in parts.learner.steps] == [2] * 6


class OddGroupsReward(StatelessReward):
    """Reward that is equal within the groups of even questions."""

    name = "spread"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [float(i * (int(t.task.id) % 2)) for i, t in enumerate(group)]


def test_groups_that_teach_nothing_are_replaced() -> None:
    parts = Parts(rubric=Rubric([(OddGroupsReward(), 1.0)]), group_filter="reward")
    rows = parts.run()
    assert all(place % 2 for place in parts.learner.places)
    assert [row["groups_trained"] for row in rows] == [2] * 6
    assert sum(row["sampling_batches"] for row in rows) > 6


def test_what_became_too_old_in_a_line_that_moves_slowly_is_dropped() -> None:
    """A step that takes the available groups takes fewer than are started for it."""
    parts = Parts(
        rubric=Rubric([(OddGroupsReward(), 1.0)]), group_filter="reward", max_sampling_batches=1
    )
    rows = parts.run()
    assert sum(row["rollouts_dropped"] for row in rows) > 0
    for number, groups in enumerate(parts.learner.steps):
        assert all(age <= 1 for age in ages(groups, number))


def test_groups_are_trained_in_the_order_in_which_they_began() -> None:
    """The order holds even if later groups end earlier: each even search waits for the next one."""
    ended = [asyncio.Event() for _ in range(12)]

    async def until(call: int) -> None:
        if call % 2 == 0:
            await ended[call + 1].wait()
        ended[call].set()

    parts = Parts(until, max_staleness=2)
    parts.run()
    assert parts.learner.places == draw_epoch_batch(0, 0, 50, 12)


def test_no_step_samples_more_than_so_many_batches() -> None:
    class Equal(StatelessReward):
        name = "equal"

        def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
            return [0.0] * len(group)

    parts = Parts(rubric=Rubric([(Equal(), 1.0)]), group_filter="reward", max_sampling_batches=3)
    rows = parts.run(0, 2)
    assert [row["groups_trained"] for row in rows] == [0, 0]
    assert all(row["sampling_batches"] >= 3 for row in rows)


def test_a_mistake_in_a_rollout_stops_the_stage_and_the_other_rollouts() -> None:
    class Broken(StatelessReward):
        name = "broken"

        def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
            raise KeyError("x")

    async def until(call: int) -> None:
        await (never if call < 2 else at_once)(call)

    parts = Parts(until, rubric=Rubric([(Broken(), 1.0)]))
    with pytest.raises(UserError, match="reward 'broken' failed"):
        parts.run()
    assert parts.tool.given_up == 2


def test_a_kill_asks_the_questions_again_that_were_not_trained() -> None:
    async def until(call: int) -> None:
        await (never if call in (1, 5) else at_once)(call)

    first = Parts(until, max_staleness=2)
    first.run(0, 2)
    # like `run_steps` after a step, while rollouts are in flight
    state = first.stage.state_dict()
    again = Parts(max_staleness=2)
    again.stage.load_state_dict(state)
    again.run(2)
    trained = [*first.learner.places, *again.learner.places]
    assert len(trained) == len(set(trained)) == 12
    assert set(trained) == set(draw_epoch_batch(0, 0, 50, 12))
    assert again.learner.steps[0][0][0].segments[1].versions[0][0] == 2


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    max_staleness=st.integers(1, 4),
    kill=st.integers(1, 5),
    slow=st.floats(0, 0.5),
)
def test_whatever_takes_how_long(seed: int, max_staleness: int, kill: int, slow: float) -> None:
    """No trained token is too old, no question is trained twice, and the only lost questions are
    those whose rollouts were dropped.
    """
    rng = random.Random(seed)

    def learning(stream: AsyncRolloutSampler) -> None:
        """Check the queue, because rollouts ended during the step."""
        assert len(stream.queue) <= 2 * max_staleness  # no more groups than later steps may train

    async def until(_: int) -> None:
        if rng.random() < slow:
            await asyncio.sleep(rng.choice([0, 0.001, 0.004, 0.1]))
        if rng.random() < 0.1:
            raise ToolError("out of order")

    first, second = (Parts(until, max_staleness=max_staleness) for _ in range(2))
    for parts in (first, second):
        parts.learner.learning = partial(learning, parts.stream)
        parts.seconds = 0.002
    rows = first.run(0, kill)
    second.stage.load_state_dict(first.stage.state_dict())
    rows += second.run(kill)
    steps = first.learner.steps + second.learner.steps
    for number, groups in enumerate(steps):
        assert len(groups) == 2
        assert all(0 <= age <= max_staleness for age in ages(groups, number))
    trained = first.learner.places + second.learner.places
    assert len(trained) == len(set(trained))
    assert [row["staleness_max"] for row in rows] == [max(ages(g, n)) for n, g in enumerate(steps)]
    whole = sum(3 - len(group) for groups in steps for group in groups)
    assert sum(row["rollouts_dropped"] for row in rows) >= whole
