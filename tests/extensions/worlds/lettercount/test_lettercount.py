"""Letter counting: words, chains, and splits."""

import random
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.data.world import make_world
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.extensions.worlds.lettercount.world import (
    LettercountWorld,
    draw_word,
    make_chain,
    make_task,
)
from fieldcraft.types import Answer, Thought, UserError


def test_a_chain_worked_out_by_hand() -> None:
    task, chain = make_task("n", "nine", "train"), make_chain("n", "nine")
    assert task.question == "How many n are there in word n-i-n-e?"
    assert task.answers == ("2",)
    assert chain == [Thought("n = n.\ni != n.\nn = n.\ne != n."), Answer("2")]
    found = DemonstrationEncoder(make_dialect("torl", tiny_tokenizer(), "")).encode(task, chain)
    assert found.segments[-1].text.startswith("n = n.\ni != n.\nn = n.\ne != n.\n\\boxed{2}")
    assert (found.answer, found.well_formed) == ("2", True)


@given(st.randoms(use_true_random=False), st.integers(1, 9), st.integers(0, 9))
def test_a_word_contains_its_letter(rng: random.Random, shortest: int, more: int) -> None:
    letter, word = draw_word(rng, shortest, shortest + more)
    assert shortest <= len(word) <= shortest + more
    assert letter in word
    assert word.isalpha()


def test_lengths_and_counts_are_uniform() -> None:
    rng = random.Random(0)
    drawn = [draw_word(rng, 5, 8) for _ in range(4000)]
    lengths = Counter(len(word) for _, word in drawn)
    assert all(900 < lengths[length] < 1100 for length in range(5, 9))
    counts = Counter(word.count(letter) for letter, word in drawn if len(word) == 5)
    assert all(140 < counts[count] < 260 for count in range(1, 6))


def test_splits_are_disjoint_from_training() -> None:
    world = LettercountWorld(0)
    trained = world.training_questions(1000)
    tasks = world.evaluation_questions({"heldout": 100, "longer": 50})
    assert len({task.id for task in tasks}) == 150
    assert {task.id for task in tasks}.isdisjoint(task.id for task in trained)
    lengths = [task.meta["length"] for task in tasks]
    assert 5 <= min(lengths[:100]) <= max(lengths[:100]) <= 20 < min(lengths[100:])
    assert [task for task, _ in world.demonstrations("demonstrations", 1000)] == trained
    assert trained != LettercountWorld(1).training_questions(1000)


def test_a_world_of_few_words_ends() -> None:
    world = LettercountWorld(0, min_length=1, max_length=1)
    words = {task.id for task in world.training_questions(100)}
    held = {task.id for task in world.evaluation_questions({"heldout": 100})}
    assert len(words | held) == 26
    assert [*islice(world.demonstrations("demonstrations", None), 30)]


def test_wrong_lengths_are_refused() -> None:
    with pytest.raises(UserError, match=r"world.max_length=3 is less than world.min_length=5"):
        LettercountWorld(0, min_length=5, max_length=3)
    with pytest.raises(UserError, match="min_length"):
        make_world("lettercount", {"min_length": 0}, 0)
