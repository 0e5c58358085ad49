"""Objects of the checks before a run: device, questions, tools, judge and model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fieldcraft.config.recipe import Recipe, acts
from fieldcraft.config.sampling import sample_notes
from fieldcraft.dialects import BaseDialect
from fieldcraft.dialects.templates import shows_date
from fieldcraft.engine.attention import refuse_special_attention
from fieldcraft.envs.environment import same_names
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.rewards.grading import JUDGE
from fieldcraft.rewards.judge import Judge
from fieldcraft.runs.build import make_correct, open_judge
from fieldcraft.runs.chosen import Chosen
from fieldcraft.runs.dialects import choose_dialect, load_dialect
from fieldcraft.runs.first_model import write_first_model
from fieldcraft.runs.inputs import EnvironmentInputs, make_inputs
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.sources import Inputs
from fieldcraft.runs.tool_notes import look_at_tool
from fieldcraft.train.lora import Adapter
from fieldcraft.train.model import (
    choose_device,
    empty_model,
    load_model,
    loss_notes,
)
from fieldcraft.train.train_mode import dropout_notes
from fieldcraft.train.twin import LARGEST, refuse_unlike_plain, require_plain
from fieldcraft.types import Task, Trajectory, UserError

# Graders that take their time or cost money, so that demonstrations are left to the run.
ASKED = (JUDGE, "unit_tests", "stdin_tests")


class Unasked(StatelessReward):
    """A grader that takes its time or costs money, and is not asked: it gives every answer the same
    score, by which it passes for right, or None, which is no verdict."""

    def __init__(self, name: str, score: float | None = 1.0) -> None:
        self.name = name
        self.score = score

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [self.score] * len(group)


def unasked(recipe: Recipe) -> list[str]:
    """Return the graders that the run will ask. A judge that is not there will grade nothing,
    unless it has to grade everything, which is refused."""
    has_judge = recipe.judge.url is not None or recipe.correct == JUDGE
    return [name for name in ASKED if name != JUDGE or has_judge]


@dataclass
class Setup:
    """Objects of the checks, found piece by piece. Each step notes what it found and yields or
    raises what is wrong."""

    recipe: Recipe
    draft: Path
    device: torch.device = field(init=False)
    inputs: Inputs = field(init=False)
    tasks: list[Task] = field(init=False)  # to train and to test on
    schemas: list[dict[str, Any]] = field(init=False)  # of the tools
    judge: Judge | None = field(init=False)
    chosen: Chosen = field(init=False)
    dialect: BaseDialect = field(init=False)
    shapes: Any = field(init=False)  # the model without its weights
    config: Any = field(init=False)  # transformers' text configuration
    parameters: int = field(init=False)
    trained: int = field(init=False)  # of the parameters, or those of an adapter on them

    def find_device(self, notes: list[str]) -> Iterator[str]:
        others = self.recipe.cluster.does_all  # processes, that have devices of their own
        self.device = choose_device("cpu" if others else self.recipe.device)
        notes.append(str(self.device))
        yield from ()

    def find_questions(self, notes: list[str]) -> Iterator[str]:
        self.inputs = make_inputs(self.recipe).reduced()
        self.inputs.unasked = unasked(self.recipe)
        self.inputs.correct = make_correct(self.recipe, *map(Unasked, self.inputs.unasked))
        train, test = self.inputs.train_tasks(), self.inputs.evaluation_tasks()
        notes += [f"{len(train)} to train", f"{len(test)} to test", *self.inputs.remarks()]
        notes += sample_notes(self.recipe.evaluation.samples, test)
        if not test or not (train or self.recipe.evaluation.tasks):
            raise UserError(
                f"there are {len(train)} questions to train on and {len(test)} to test on: give"
                " tasks=FILE more of them, or the world a split that has some."
            )
        self.tasks = train + test
        heldout = {t.question for t in test if t.meta["split"] == "heldout"}
        both = heldout & {t.question for t in train}
        if both and not isinstance(self.inputs, EnvironmentInputs):  # its games may begin alike
            yield (
                f"{len(both)} questions are both trained and held out, such as '{min(both)}':"
                " remove repeated questions."
            )

    def find_tools(self, notes: list[str]) -> Iterator[str]:
        """Open the tools, one by one, so that one with a problem hides no other. Those that the run
        does not use stay closed."""
        self.schemas = []
        for choice in self.recipe.tools if acts(self.recipe) else ():
            try:
                tools, noted = look_at_tool(self.recipe, choice, self.draft)
            except UserError as error:
                yield str(error)
                continue
            notes += noted
            self.schemas += [tool.schema for tool in tools]
        yield from same_names([schema["function"]["name"] for schema in self.schemas])

    def find_judge(self, notes: list[str]) -> Iterator[str]:
        judge = self.recipe.judge
        self.judge = run_async(open_judge(judge, cache=None))
        if self.judge is not None:
            notes.append(f"{judge.model} at {judge.url} answers, {judge.votes} votes an answer")
        else:
            notes.append("none")
        yield from ()

    def find_model(self, notes: list[str]) -> Iterator[str]:
        self.chosen = choose_dialect(self.recipe)
        self.recipe = self.recipe.model_copy(update={"dialect": self.chosen.name})
        folder = self.recipe.model
        if folder is None:
            folder = self.draft / "model"
            write_first_model(self.inputs, folder)
        shapes = self.shapes = empty_model(folder)
        refuse_special_attention(shapes)
        if self.recipe.model is not None:
            refuse_unlike_plain(shapes.config)
        self.config = shapes.config.get_text_config()
        self.parameters = sum(p.numel() for p in shapes.parameters())
        if self.recipe.lora is not None:
            Adapter(shapes, self.recipe.lora, self.recipe.seed)  # freezes all but itself
        self.trained = sum(p.numel() for p in shapes.parameters() if p.requires_grad)
        self.dialect = load_dialect(self.recipe, folder)
        notes.append(f"{self.config.model_type}, {self.parameters:,} parameters")
        if shows_date(self.dialect.tokenizer, self.recipe.template):
            notes.append(f"prompts show the date {self.recipe.date} (date=)")
        if self.recipe.lora is not None:
            notes.append(f"{self.trained:,} of an adapter")
        notes += [*loss_notes(shapes.config), *dropout_notes(shapes.config)]
        yield from ()

    @property
    def has_weights(self) -> bool:
        """Return whether the weights are there. Where they are missing, nothing can be run yet, so
        memory and disk of this machine are not held against the recipe."""
        folder = self.recipe.model
        return folder is None or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))

    def find_weights(self, notes: list[str]) -> Iterator[str]:
        """Check that the weights are there, whole and finite; those of a model that is made here
        are. A small one is compared as by a trainer."""
        if not self.has_weights:
            yield f"{self.recipe.model} holds no weights: copy its .safetensors files there."
        elif self.recipe.model is not None:
            small = self.parameters <= LARGEST
            dtype = self.recipe.policy_dtype if small else "bfloat16"
            model = load_model(self.recipe.model, torch.device("cpu"), dtype)
            if small:
                require_plain(model, dtype)
