"""A world in addition to the built-in ones: a code book.

The model is taught the meaning of some codes and must search for the others. Nothing in the
framework refers to this world.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from fieldcraft.data.world import Demonstration, OracleDecision, World, WorldOracle
from fieldcraft.types import (
    Answer,
    DemoStep,
    Observation,
    Task,
    Thought,
    ToolCall,
)

WORDS = ("stone", "river", "cloud", "ember", "field")


class CodeBook(World):
    """Codes and the words that they represent.

    A third is taught, a third is for training, and a third is held out.
    """

    splits: ClassVar = {"heldout": "Codes of no training", "train": "Codes of the training"}
    datasets: ClassVar = ("base", "demonstrations")
    toolless_datasets: ClassVar = ("base",)

    def __init__(self, seed: int, codes: Annotated[int, Field(ge=3)] = 30) -> None:
        super().__init__(seed)
        rng = random.Random(f"codes:{seed}")
        names = [f"{a}{b}" for a in "bdfgklmnprstvz" for b in ("an", "el", "io", "ut")]
        self.meaning = {name: rng.choice(WORDS) for name in rng.sample(names, codes)}
        parts = [list(self.meaning)[i::3] for i in range(3)]
        self.regions = dict(zip(("taught", "train", "heldout"), parts, strict=True))

    def passages(self) -> list[dict[str, str]]:
        return [
            {"id": code, "title": code, "text": self.describe(code)[0].text}
            for code in self.meaning
        ]

    def describe(self, code: str) -> tuple[Thought, Observation]:
        """Return the thought of a model that knows a code, and the result of a search for it."""
        text = f"{code} means {self.meaning[code]}."
        return Thought(text), Observation(f'result 1: "{code}"\n{text}')

    def task(self, code: str, split: str) -> Task:
        known = code in self.regions["taught"]
        meta = {"split": split, "code": code, "known": known, "calls_optimal": int(not known)}
        return Task(f"code:{code}", f"What does {code} mean?", (self.meaning[code],), meta)

    def training_questions(self, count: int) -> list[Task]:
        codes = [*self.regions["taught"], *self.regions["train"]]
        return [self.task(code, "train") for code in codes[:count]]

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        return [
            self.task(code, split)
            for split in self.splits
            for code in self.regions[split][: splits.get(split, 0)]
        ]

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        codes = self.regions["taught"] if dataset == "base" else self.regions["train"]
        tasks = [self.task(code, "train") for code in codes] * 10
        return [(task, self.oracle.demonstration(task)) for task in tasks[:count]]

    @property
    def oracle(self) -> "BookOracle":
        return BookOracle(self)

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        for code in self.meaning:
            thought, observation = self.describe(code)
            yield f"What does {code} mean?\n{thought.text}\n{observation.text}\n"
        yield from ("I must search. ", *(f"{tag} {tag}\n" for tag in tags), "\\boxed{")


class BookOracle(WorldOracle):
    """An oracle that states taught or found meanings, and searches for the others."""

    def __init__(self, book: CodeBook) -> None:
        self.book = book

    def next_step(self, task: Task, history: Sequence[DemoStep]) -> DemoStep:
        code = task.meta["code"]
        known, found = self.book.describe(code)
        if history and isinstance(history[-1], ToolCall):
            return found
        if any(isinstance(step, Thought) and known.text in step.text for step in history):
            return Answer(self.book.meaning[code])
        return (
            known if task.meta["known"] or found in history else ToolCall("search", {"query": code})
        )

    def optimal_calls(self, task: Task) -> int:
        return int(not task.meta["known"])

    def guess(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return [Thought("It may be this."), Answer(rng.choice(WORDS))]

    def decisions(self, task: Task, rng: random.Random) -> list[OracleDecision]:
        search: tuple[DemoStep, ...] = (ToolCall("search", {"query": task.meta["code"]}),)
        known = self.book.describe(task.meta["code"])[:1]
        if task.meta["known"]:
            return [OracleDecision((), known, search)]
        return [OracleDecision((), search, tuple(self.guess(task, rng)))]
