"""Questions of a step that are sampled without tools, and the resulting training."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fieldcraft.config.rl import Rl
from fieldcraft.train.epochs import draw_epoch_batch
from fieldcraft.train.rollout_metrics import compute_tool_free_metrics
from fieldcraft.train.sampler import select_tool_free_questions
from fieldcraft.types import Status, Task, Trajectory
from rl_parts import RIGHT, SEARCH, TASKS, WRONG, stage
from training_parts import step


def settings(**given: Any) -> Rl:
    return Rl.model_validate({"steps": 1, "optim": {"lr": 1e-3}} | given)


def questions(count: int, known: Collection[int] = ()) -> list[Task]:
    return [Task(str(i), "?", ("a",), {"known": i in known}) for i in range(count)]


@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 99), st.integers(0, 99))
def test_the_share_is_rounded_to_a_neighbour(n: int, share: float, seed: int, batch: int) -> None:
    s = settings(cot_share=share)
    found = select_tool_free_questions(s, seed, batch, questions(n))
    assert abs(len(found) - n * share) < 1
    assert found <= set(range(n))
    assert found == select_tool_free_questions(s, seed, batch, questions(n))


def test_over_many_steps_the_share_is_met_and_every_place_is_drawn() -> None:
    """A share of 0.3 of 5 questions is 1 or 2 of them, with a mean of 1.5."""
    found = [
        select_tool_free_questions(settings(cot_share=0.3), 0, b, questions(5)) for b in range(400)
    ]
    assert abs(sum(map(len, found)) / 400 - 1.5) < 0.1
    assert set().union(*found) == set(range(5))


def test_known_questions_alone_can_be_admitted() -> None:
    every = settings(cot_share=1.0, cot_questions="known")
    assert select_tool_free_questions(every, 0, 0, questions(6, {1, 4})) == {1, 4}
    assert select_tool_free_questions(settings(), 0, 0, questions(6)) == set()


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs a cot_share above 0"):
        settings(cot_questions="known")


SCRIPTS = {"0/0": [RIGHT], "0/1": [SEARCH, RIGHT], "1/0": [SEARCH, RIGHT], "1/1": [WRONG]}


def test_a_call_is_worth_nothing_where_the_tools_are_unavailable() -> None:
    """The first question is asked without tools. Its direct answer is correct, and a call ends its
    rollout without an answer.

    The second question has its tools, and the call leads to the correct answer.
    """
    rl, trainer, _ = stage(SCRIPTS, advantage_scale="none", cot_share=1.0, cot_questions="known")
    first = draw_epoch_batch(0, 0, 2, 2)[0]
    rl.sampler.tasks = [replace(t, meta={"known": i == first}) for i, t in enumerate(TASKS)]
    row = step(rl, 0)
    advantages = [max(s.advantage, key=abs) for s in trainer.samples]
    assert advantages == [0.5, -0.5, 0.5, -0.5]
    assert row["tool_free/share"] == 0.5
    assert (row["tool_free/em"], row["tool_free/answered"]) == (0.5, 0.5)
    assert (row["em"], row["calls_mean"]) == (0.5, 0.5)  # the second question alone


def test_metrics_are_of_rollouts_without_tools_and_absent_without_any() -> None:
    task = TASKS[0]
    right = Trajectory(task, status=Status.ANSWERED, rewards={"em": 1.0}, tool_free=True)
    called = Trajectory(task, rewards={"em": 0.0}, tool_free=True)
    usual = Trajectory(task, rewards={"em": 1.0})
    assert compute_tool_free_metrics([usual]) == {}
    assert compute_tool_free_metrics([right, called, usual, usual]) == {
        "tool_free/share": 0.5,
        "tool_free/em": 0.5,
        "tool_free/answered": 0.5,
    }
