"""World class of letter counting, which a recipe can name.

The setting is that of verl's recipe char_count: words of random letters between hyphens, so that
each letter is a token; lengths and counts are uniform, the letter occurs at least once. The chain
compares every letter with the requested one and ends with the count.
"""

from __future__ import annotations

import random
import string
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, ClassVar

from pydantic import Field

from fieldcraft.data.world import Demonstration, World
from fieldcraft.extensions.worlds.distinct import draw_distinct_items
from fieldcraft.types import Answer, DemoStep, Task, Thought, UserError

WordLength = Annotated[int, Field(gt=0, le=1000)]  # in letters, each of which is a token
SPLITS = {
    "heldout": "Words that do not occur in training",
    "longer": "Words with up to five letters more than in training",
    "train": "Questions of training",
}
HELDOUT_ONE_IN = 10
MAX_FAILURES = 2000  # consecutive draws after which the words are considered exhausted
EXTRA_LETTERS = 5  # of the split `longer`
DATASET_SIZE = 9000  # examples, unless a recipe requests fewer


class LettercountWorld(World):
    """World of questions such as `How many n are there in word n-i-n-e?`."""

    splits: ClassVar[Mapping[str, str]] = SPLITS
    datasets: ClassVar[Sequence[str]] = ("demonstrations",)
    toolless_datasets: ClassVar[Sequence[str]] = ("demonstrations",)

    def __init__(self, seed: int, min_length: WordLength = 5, max_length: WordLength = 20) -> None:
        """Check the lengths.

        Args:
            seed: seed of the run.
            min_length: letters of the shortest word.
            max_length: letters of the longest word.

        Raises:
            UserError: the longest word is shorter than the shortest.
        """
        super().__init__(seed)
        if max_length < min_length:
            raise UserError(
                f"world.max_length={max_length} is less than world.min_length={min_length}: raise"
                " it."
            )
        self.lengths = (min_length, max_length)

    def passages(self) -> list[dict[str, str]]:
        """Return no passages, because this world has no search."""
        return []

    def training_questions(self, count: int) -> list[Task]:
        return [task for task, _ in self.demonstrations("demonstrations", count)]

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        found: list[Task] = []
        for split in SPLITS:
            count = splits.get(split, 0)
            if split == "train":
                found += self.training_questions(count)
                continue
            shortest, longest = self.lengths
            is_longer = split == "longer"
            lengths = (longest + 1, longest + EXTRA_LETTERS) if is_longer else (shortest, longest)
            words = _iterate_words(random.Random(f"{split}:{self.seed}"), lengths, heldout=True)
            found += [make_task(letter, word, split) for letter, word in islice(words, count)]
        return found

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        """Return the training questions with their chains; supervision and reinforcement learning
        use the same questions, as in verl's recipe."""
        rng = random.Random(f"train:{self.seed}")
        words = _iterate_words(rng, self.lengths, heldout=False)
        size = DATASET_SIZE if count is None else count
        return [
            (make_task(letter, word, "train"), make_chain(letter, word))
            for letter, word in islice(words, size)
        ]


def _iterate_words(
    rng: random.Random, lengths: tuple[int, int], *, heldout: bool
) -> Iterator[tuple[str, str]]:
    """Return distinct letters with words of one side, until hardly any are left."""

    def draw() -> tuple[str, str] | None:
        drawn = draw_word(rng, *lengths)
        is_heldout = zlib.crc32(" ".join(drawn).encode()) % HELDOUT_ONE_IN == 0
        return drawn if is_heldout == heldout else None

    return draw_distinct_items(draw, " ".join, MAX_FAILURES)


def draw_word(rng: random.Random, min_length: int, max_length: int) -> tuple[str, str]:
    """Return a letter, and a word that contains it from one to all times, uniformly."""
    length = rng.randint(min_length, max_length)
    letter = rng.choice(string.ascii_lowercase)
    count = rng.randint(1, length)
    others = string.ascii_lowercase.replace(letter, "")
    letters = [letter] * count + rng.choices(others, k=length - count)
    rng.shuffle(letters)
    return letter, "".join(letters)


def make_task(letter: str, word: str, split: str) -> Task:
    question = f"How many {letter} are there in word {'-'.join(word)}?"
    count = word.count(letter)
    meta = {"split": split, "length": len(word)}
    return Task(f"lettercount:{letter}:{word}", question, (str(count),), meta)


def make_chain(letter: str, word: str) -> list[DemoStep]:
    """Return a comparison for each letter of a word, and the count."""
    comparisons = (f"{each} {'=' if each == letter else '!='} {letter}." for each in word)
    return [Thought("\n".join(comparisons)), Answer(str(word.count(letter)))]
