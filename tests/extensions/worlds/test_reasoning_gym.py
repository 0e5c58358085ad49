"""Puzzles of reasoning-gym: drawn by its generators and scored by its verifiers."""

import asyncio
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fieldcraft.data.world import make_world
from fieldcraft.extensions.worlds.reasoning_gym import (
    PUZZLE_KEY,
    VERIFIER,
    ReasoningGymReward,
    ReasoningGymWorld,
)
from fieldcraft.rewards.grading import resolve_grader
from fieldcraft.types import Answer, Task, Trajectory, UserError

needs_package = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="needs fieldcraft[reasoning-gym]"
)
SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def world(seed: int = 0, **settings: Any) -> ReasoningGymWorld:
    made = make_world("reasoning-gym", settings, seed)
    assert isinstance(made, ReasoningGymWorld)
    return made


def refused(**settings: Any) -> str:
    with pytest.raises(UserError) as raised:
        world(**settings)
    assert str(raised.value).count("\n") == 0
    return str(raised.value)


def scores(task: Task, *answers: str | None) -> list[float | None]:
    reward = ReasoningGymReward()

    async def score_all() -> list[float | None]:
        return [await reward.score_trajectory(Trajectory(task, answer=a)) for a in answers]

    return asyncio.run(score_all())


@needs_package
def test_puzzles_are_distinct_and_the_same_each_time() -> None:
    made = world(generators={"chain_sum": SUMS, "letter_counting": {"weight": 0.25}})
    tasks = made.training_questions(60)
    assert len({task.question for task in tasks}) == 60
    assert tasks == world(generators={"chain_sum": SUMS, "letter_counting": {"weight": 0.25}}
    ).training_questions(60)  # fmt: skip
    kinds = [task.meta["type"] for task in tasks]
    assert 3 < kinds.count("letter_counting") < 30  # 12 are expected
    assert resolve_grader(tasks[0]) == "reasoning_gym"
    assert made.training_questions(60) != world(1, generators={"chain_sum": SUMS}
    ).training_questions(60)  # fmt: skip


@needs_package
def test_held_out_puzzles_do_not_occur_in_training() -> None:
    """There are 10 * 10 * 2 sums of two digits, of which a fifth is held out."""
    made = world(generators={"chain_sum": SUMS})
    train = {task.question for task in made.training_questions(1000)}
    heldout = {task.question for task in made.evaluation_questions({"heldout": 1000})}
    assert not train & heldout
    assert len(train | heldout) > 190
    assert 20 < len(heldout) < 60


@needs_package
def test_levels_of_the_curriculum() -> None:
    made = world(generators={"chain_sum": {"min_digits": 1, "max_digits": 1}}, levels=[0, 1])
    terms: dict[int, set[int]] = {0: set(), 1: set()}
    for task in made.training_questions(60):
        expression = task.question.rpartition(":")[2].removesuffix("=")
        terms[task.meta["level"]].add(len(expression.split()) // 2 + 1)
    assert terms[0] <= {2, 3}
    assert terms[1] <= {2, 3, 4}
    [harder] = made.evaluation_questions({"heldout": 0, "harder": 1})
    assert (harder.meta["level"], harder.meta["split"]) == (2, "harder")
    with pytest.raises(UserError, match=r"set world\.levels"):
        world(generators={"chain_sum": SUMS}).evaluation_questions({"harder": 1})


@needs_package
def test_an_answer_is_scored_by_the_verifier() -> None:
    [task] = world(generators={"chain_sum": SUMS}).training_questions(1)
    gold = int(task.answers[0])
    assert scores(task, f"{gold}.0", str(gold + 1), None, " ")[0] == 1.0  # not the same text
    assert scores(task, str(gold + 1), None, "", "?!")[1:3] == [0.0, 0.0]
    assert all(score is not None and score < 1 for score in scores(task, str(gold + 1), "?!"))
    assert scores(Task("q", "Why?", ("x",)), "x") == [None]
    [(same, steps)] = world(generators={"chain_sum": SUMS}).demonstrations("demonstrations", 1)
    assert (same, steps) == (task, [Answer(task.answers[0])])


@needs_package
@pytest.mark.long
def test_a_verifier_that_evaluates_an_answer_runs_in_the_sandbox(tmp_path: Any) -> None:
    [task] = world(generators={"countdown": {"min_numbers": 2, "max_numbers": 2}}
    ).training_questions(1)  # fmt: skip
    file = tmp_path / "written"
    attack = f"exec('open({str(file)!r}, \"w\")')"
    found = scores(task, task.answers[0], attack)
    assert found[0] == 1.0
    assert found[1] is None or found[1] < 1
    assert not file.exists()


@needs_package
@pytest.mark.long
def test_a_puzzle_of_another_version_cannot_be_graded() -> None:
    [task] = world(generators={"chain_sum": SUMS}).training_questions(1)
    puzzle = task.meta[PUZZLE_KEY] | {"index": task.meta[PUZZLE_KEY]["index"] + 1}
    other = Task("q", task.question, task.answers, task.meta | {PUZZLE_KEY: puzzle})
    assert scores(other, task.answers[0]) == [None]


GENERATOR = """
class One:
    def __init__(self, digits=1):
        assert digits, "digits must be positive"

    def __getitem__(self, index):
        return [{"question": f"{number}?", "answer": str(number)} for number in range(2)][index]

    def score_answer(self, answer, entry):
        return float(answer == entry["answer"])
"""


@pytest.mark.parametrize(
    ("changed", "score"),
    [
        ({}, 1.0),
        ({"generator": "gone"}, None),
        ({"settings": {"digits": 0}}, None),
        ({"settings": {"terms": 3}}, None),
        ({"index": 2}, None),
    ],
)
def test_a_verifier_knows_the_puzzles_of_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, Any], score: float | None
) -> None:
    """A package with one generator, in place of the real one."""
    (tmp_path / "one_generator.py").write_text(GENERATOR)
    monkeypatch.syspath_prepend(tmp_path)
    one = importlib.import_module("one_generator").One
    factory: Any = ModuleType("reasoning_gym.factory")
    factory.DATASETS = {"one": (one, None)}
    factory.create_dataset = lambda name, seed, **settings: one(**settings)
    monkeypatch.setitem(sys.modules, "reasoning_gym", ModuleType("reasoning_gym"))
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)
    monkeypatch.delitem(sys.modules, VERIFIER, raising=False)
    verifier: Any = importlib.import_module(VERIFIER)
    puzzle = {"generator": "one", "settings": {}, "seed": 0, "index": 1, "question": "1?"}
    try:
        assert list(verifier._score(puzzle | changed | {"answer": "1"})) == [{"score": score}]
    finally:
        del sys.modules[VERIFIER], sys.modules["one_generator"]


@needs_package
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"generators": {}}, "needs generators"),
        ({"generators": {"chain_summ": {}}}, "did you mean 'chain_sum'?"),
        ({"generators": {"chain_summ": {}}, "levels": [0]}, "did you mean 'chain_sum'?"),
        ({"generators": {"chain_sum": {"terms": 2}}}, "min_terms"),
        ({"generators": {"chain_sum": {"min_terms": 0}}}, "min_terms must be positive"),
        ({"generators": {"chain_sum": {"weight": 0}}}, "must be a number > 0"),
        ({"generators": {"chain_sum": {}}, "levels": [99]}, "has the levels 0 to 10, not 99"),
        ({"generators": {"composite": {}}, "levels": [0]}, "leave out world.levels"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], expected: str) -> None:
    assert expected in refused(**settings)


@pytest.mark.skipif(find_spec("reasoning_gym") is not None, reason="reasoning-gym is installed")
def test_a_missing_package_is_named() -> None:
    assert "pip install 'fieldcraft[reasoning-gym]'" in refused(generators={"chain_sum": {}})
    with pytest.raises(UserError, match="fieldcraft\\[reasoning-gym\\]"):
        ReasoningGymReward()
