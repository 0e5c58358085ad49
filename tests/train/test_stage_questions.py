"""Selection of questions for a stage of reinforcement learning."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from fieldcraft.config.rl import Rl
from fieldcraft.train.stages.rl import RlStage, select_tasks
from fieldcraft.types import Task

METADATA: list[dict[str, Any]] = [
    {"read": True, "hops": 1},
    {"read": True, "hops": 2, "path": ["a", "b"]},
    {"read": False, "hops": 2, "known": True},
    {},
]
TASKS = [Task(str(i), "?", ("a",), meta) for i, meta in enumerate(METADATA)]


def settings(where: Mapping[str, Any], **given: Any) -> Rl:
    return Rl.model_validate({"steps": 1, "optim": {"lr": 1e-3}, "where": where} | given)


@pytest.mark.parametrize(
    ("where", "asked"),
    [
        ({}, "0123"),
        ({"read": True}, "01"),
        ({"read": False}, "2"),
        ({"read": True, "hops": 2}, "1"),
        ({"hops": 3}, ""),
    ],
)
def test_the_questions_with_all_of_the_metadata_are_asked(
    where: dict[str, Any], asked: str
) -> None:
    assert "".join(task.id for task in select_tasks(settings(where), TASKS)) == asked


def problems(s: Rl) -> list[str]:
    data: Any = SimpleNamespace(load_training_tasks=lambda: TASKS)
    return list(RlStage.check(s, "rl1", data, []))


def test_a_stage_without_any_question_is_refused_by_name() -> None:
    assert problems(settings({"read": True})) == []
    [message] = problems(settings({"hops": 3}))
    assert "stage 'rl1' has where: {'hops': 3}" in message
    assert "correct or remove where" in message


def test_known_questions_are_looked_for_among_those_that_are_asked() -> None:
    share = {"cot_share": 0.5, "cot_questions": "known"}
    assert problems(settings({"read": False}, **share)) == []
    [message] = problems(settings({"read": True}, **share))
    assert "no training question is known" in message


def test_a_value_that_no_metadata_can_equal_is_refused() -> None:
    with pytest.raises(ValidationError):
        settings({"path": ["a", "b"]})
