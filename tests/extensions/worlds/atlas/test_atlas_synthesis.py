"""Harder questions of Atlas: their content, and the articles that answer them."""

import random
import re
from collections import Counter

import pytest

from fieldcraft.data.world import World, make_world
from fieldcraft.extensions.worlds.atlas.facts import Atlas
from fieldcraft.extensions.worlds.atlas.synthesis import JOIN_KINDS, collect_facts, derive_answer
from fieldcraft.types import Task, UserError

WORLD = make_world("atlas", {"people": 60, "reserved_chains": 3}, 0)
FACTS: Atlas = WORLD.atlas


def synthesise(kind: str, count: int, world: World = WORLD) -> list[Task]:
    rng = random.Random(0)
    tasks = world.training_questions(200)
    found = (world.synthesise(kind, rng.choice(tasks), rng) for _ in range(40 * count))
    return [task for task in found if task is not None][:count]


def test_one_hop_deeper() -> None:
    tasks = {task.id: task for task in WORLD.training_questions(200)}
    for task in synthesise("depth", 30):
        parent = tasks[task.meta["from"][0]]
        assert task.meta["path"][:-1] == parent.meta["path"]
        assert task.meta["hops"] == parent.meta["hops"] + 1
        [answer] = task.answers
        assert FACTS.facts[parent.answers[0], task.meta["path"][-1]] == answer
        assert not FACTS.is_reserved(tuple(task.meta["path"][1:]))


@pytest.mark.parametrize("kind", ["depth", *JOIN_KINDS])
def test_the_articles_answer_them_and_no_held_out_name_is_in_them(kind: str) -> None:
    found = synthesise(kind, 25)
    assert len(found) == 25
    for task in found:
        assert WORLD.answer_from_passages(task) == task.answers[0]
        names = {path[0] for path in task.meta["paths"]} | {*task.answers}
        regions = {FACTS.entities[n].region for n in names if n in FACTS.entities}
        assert "heldout" not in regions
        assert all(path[0] in task.question for path in task.meta["paths"])
        if kind != "compare":
            assert task.answers[0] not in task.question


def test_a_wrong_answer_is_found_out() -> None:
    facts = collect_facts([{"text": "Ada is a person with the birthplace Ostin."}])
    assert facts == {("Ada", "birthplace"): "Ostin"}
    task = Task("t", "?", ("Rell",), {"made": "depth", "paths": [["Ada", "birthplace"]]})
    assert derive_answer(facts, task) == "Ostin"
    both = Task("t", "?", (), {"made": "depth", "paths": [["Ada", "employer"]]})
    assert derive_answer(facts, both) is None


@pytest.mark.parametrize(
    ("kind", "names", "answer"),
    [
        ("count", "Ada Bo Cy Di", "2"),
        ("count", "Ada Bo", "1"),
        ("compare", "Ada Bo Cy Di", "Di"),
        ("compare", "Di Ada", "Di"),
        ("compare", "Ada Bo", None),  # no person was born in Rell
        ("intersect", "Ada Cy", "Ostin"),
        ("intersect", "Ada Di", None),  # they have nothing in common
        ("count", "Ada Eve", None),  # no article is about Eve
    ],
)
def test_answers_to_the_letter(kind: str, names: str, answer: str | None) -> None:
    born = {"Ada": "Ostin", "Bo": "Ostin", "Cy": "Ostin", "Di": "Rell"}
    facts = {(name, "birthplace"): city for name, city in born.items()}
    paths = [[name, "birthplace"] for name in names.split()]
    meta = {"made": kind, "paths": paths, "value": "Rell"}
    assert derive_answer(facts, Task("t", "?", (), meta)) == answer


def test_joined_questions_in_words() -> None:
    forms = {
        "count": r"How many different \w+ are the [a-z ]+ of .+, .+ and .+\?",
        "compare": r"For which of .+, .+, .+ and .+ is the [a-z ]+[A-Z].+\?",
        "intersect": r"Which \w+ is both the [a-z ]+ of .+ and the [a-z ]+ of .+\?",
    }
    for kind, form in forms.items():
        for task in synthesise(kind, 10):
            assert re.fullmatch(form, task.question)
            paths = [tuple(path) for path in task.meta["paths"]]
            assert len({path[0] for path in paths}) == len(paths)
            assert max(map(FACTS.optimal_calls, paths)) <= task.meta["calls_optimal"]
            assert task.meta["calls_optimal"] <= sum(map(FACTS.optimal_calls, paths))
            assert task.meta["known"] == (task.meta["calls_optimal"] == 0)


@pytest.mark.long
def test_a_guess_among_four_is_right_once_in_four() -> None:
    numbers = Counter(task.answers[0] for task in synthesise("count", 60))
    assert max(numbers.values()) <= 30
    places = Counter(
        [path[0] for path in task.meta["paths"]].index(task.answers[0])
        for task in synthesise("compare", 60)
    )
    assert max(places.values()) <= 30


def test_a_world_that_makes_none() -> None:
    with pytest.raises(UserError, match=r"synthesises no questions: set teacher\.model"):
        make_world("abacus", {}, 0).synthesise("depth", Task("t", "?", ()), random.Random(0))
