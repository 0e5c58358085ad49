"""The scripted single agent of Atlas: it makes the mistakes of the team without repairing them."""

import random
from collections.abc import Sequence

from fieldcraft.extensions.worlds.atlas.facts import Route
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas
from fieldcraft.extensions.worlds.atlas.oracle import make_demonstration
from fieldcraft.extensions.worlds.atlas.team import make_single_agent_demonstration
from fieldcraft.rewards.answers import exact_match
from fieldcraft.types import Answer, DemoStep, Observation, Thought, ThoughtRole, ToolCall

WORLD = generate_atlas(people=60, taught=0.4, heldout=0.5, seed=0)
_RNG = random.Random(3)
PATHS = [WORLD.sample_path(_RNG, ["train", "taught"], 1 + i % 3) for i in range(300)]


def chains(mistakes: float) -> list[tuple[Route, list[DemoStep]]]:
    return [
        (path, make_single_agent_demonstration(WORLD, path, random.Random(i), mistakes))
        for i, path in enumerate(PATHS)
    ]


def answer(steps: Sequence[DemoStep]) -> str:
    assert isinstance(steps[-1], Answer)
    return steps[-1].text


def right(path: Route, steps: Sequence[DemoStep]) -> bool:
    return exact_match(answer(steps), [WORLD.trace_path(path)[-1][2]])


def test_without_mistakes_it_is_the_oracle() -> None:
    for path, steps in chains(0.0):
        assert steps == make_demonstration(WORLD, path)


def test_it_only_thinks_searches_and_answers() -> None:
    for _, steps in chains(0.5):
        roles = {step.role for step in steps if isinstance(step, Thought)}
        assert roles <= {ThoughtRole.THINK}
        for step in steps:
            assert isinstance(step, Thought | ToolCall | Observation | Answer)


def test_mistakes_make_wrong_answers_and_more_of_them_more() -> None:
    rates = [
        sum(right(path, steps) for path, steps in chains(mistakes)) / len(PATHS)
        for mistakes in (0.0, 0.25, 1.0)
    ]
    assert rates[0] == 1.0
    # An answer other than the result of the chain is always wrong. The other two kinds need a
    # search, so each of them takes at most a quarter of the remaining answers.
    assert 0.75**3 - 0.08 < rates[1] < 0.75 + 0.08
    assert rates[2] < 0.05


def test_the_same_seed_makes_the_same_mistakes() -> None:
    assert chains(0.5) == chains(0.5)
    assert chains(0.5) != chains(0.25)
