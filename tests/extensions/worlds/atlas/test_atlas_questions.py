"""Questions of the world Atlas, for training and for the splits of its evaluations."""

from collections import Counter

import pytest

from fieldcraft.extensions.worlds.atlas.facts import Atlas
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas
from fieldcraft.extensions.worlds.atlas.questions import (
    SPLITS,
    draw_evaluation_tasks,
    draw_train_tasks,
)
from fieldcraft.types import Task, UserError

WORLD = generate_atlas(people=60, taught=0.4, heldout=0.5, seed=0)
HELDOUT = {name for name, entity in WORLD.entities.items() if entity.region == "heldout"}
RESERVING = generate_atlas(people=60, taught=0.4, heldout=0.5, seed=0, reserved=4)


def test_questions_in_and_out_of_the_domain() -> None:
    counts = {
        "heldout": 20,
        "train": 5,
        "known": 5,
        "mixed": 60,
        "four_hops": 40,
        "unseen_chains": 30,
    }
    found = draw_evaluation_tasks(RESERVING, 0, counts)
    assert Counter(task.meta["split"] for task in found) == counts
    backwards = dict(reversed(counts.items()))
    assert draw_evaluation_tasks(RESERVING, 0, backwards) == found
    hops = {"four_hops": {4}, "unseen_chains": {2, 3}, "mixed": {1, 2, 3}}
    for split, lengths in hops.items():
        part = [task for task in found if task.meta["split"] == split]
        starts = Counter(RESERVING.entities[t.meta["path"][0]].region for t in part)
        assert set(starts) == {"heldout", "taught"}
        assert min(starts.values()) > 1
        assert {task.meta["hops"] for task in part} == lengths
    for task in found:
        reserved = RESERVING.is_reserved(tuple(task.meta["path"][1:]))
        assert reserved == (task.meta["split"] == "unseen_chains")
    with pytest.raises(UserError, match=r"needs world\.reserved_chains"):
        draw_evaluation_tasks(WORLD, 0, {"heldout": 1, "unseen_chains": 1})


def test_a_split_that_the_world_cannot_fill_is_all_there_is() -> None:
    tasks = draw_evaluation_tasks(RESERVING, 0, dict.fromkeys(SPLITS, 10**9))
    found = Counter(task.meta["split"] for task in tasks)
    assert {split for split in SPLITS if 0 < found[split] < 10**4} == {*SPLITS}
    assert len({(task.meta["split"], task.id) for task in tasks}) == len(tasks)


def test_training_and_evaluation_questions_of_their_regions() -> None:
    tasks = draw_evaluation_tasks(WORLD, 0, {"heldout": 60, "train": 20, "known": 15})
    splits = [task.meta["split"] for task in tasks]
    assert splits == ["heldout"] * 60 + ["train"] * 20 + ["known"] * 15
    assert len({task.id for task in tasks}) == len(tasks)
    start = {"heldout": "heldout", "train": "train", "known": "taught"}
    for task in tasks:
        assert WORLD.entities[task.meta["path"][0]].region == start[task.meta["split"]]
        assert task.meta["known"] == (task.meta["calls_optimal"] == 0)
    assert {task.meta["hops"] for task in tasks[:60]} == {1, 2, 3}
    trained = draw_train_tasks(WORLD, 0, 300)
    assert len({task.id for task in trained}) == len(trained) > 200
    assert {WORLD.entities[t.meta["path"][0]].region for t in trained} == {"train", "taught"}


def regions(world: Atlas, task: Task) -> set[str]:
    """Return the regions of the subjects of a question's facts."""
    return {world.entities[subject].region for subject, _, _ in world.trace_path(task.meta["path"])}


def test_heldout_questions_are_about_heldout_entities_from_first_to_last() -> None:
    for task in draw_evaluation_tasks(WORLD, 0, {"heldout": 1000}):
        assert regions(WORLD, task) == {"heldout"}
        assert task.answers[0] in HELDOUT
    loose = draw_evaluation_tasks(WORLD, 0, {"heldout_start": 1000})
    assert {WORLD.entities[task.meta["path"][0]].region for task in loose} == {"heldout"}
    assert any(task.answers[0] not in HELDOUT for task in loose)


def test_what_has_to_be_searched_for_in_an_evaluation_is_held_out() -> None:
    for split in ("heldout", "known", "mixed", "four_hops", "unseen_chains"):
        for task in draw_evaluation_tasks(RESERVING, 0, {split: 300}):
            assert "train" not in regions(RESERVING, task), split


def test_a_split_does_not_depend_on_the_others() -> None:
    alone = draw_evaluation_tasks(WORLD, 0, {"known": 10})
    assert draw_evaluation_tasks(WORLD, 0, {"heldout": 7, "known": 10})[7:] == alone
    assert draw_evaluation_tasks(WORLD, 0, {"known": 4}) == alone[:4]
