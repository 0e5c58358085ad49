"""Sections of a recipe that sample models before training: selection, closed book, collection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.filters import Filters, QuestionFilters
from fieldcraft.config.sampling import GREEDY_SAMPLES_MESSAGE, SamplingConfig
from fieldcraft.config.sections import Fraction01

TEACHER = "teacher"


class SelectConfig(SamplingConfig):
    """Selection of the questions for reinforcement learning; see data/selection.py."""

    default_temperature: ClassVar[float] = 1.0

    questions: PositiveInt = 1000  # maximum number of candidates
    filters: QuestionFilters = Field(default={})  # applied to the questions before sampling
    # model that samples without tools: a stage, `start` or `teacher`; None: no such rule
    closed_book_model: str | None = "start"
    closed_book_samples: PositiveInt = 32  # of each question, without tools
    max_closed_book_accuracy: Annotated[float, Field(ge=0, le=1)] = 0.3  # share of correct samples
    solver: str | None = None  # a stage, or `start`; solved questions are dropped
    solver_rollouts: PositiveInt = 8  # of each question, with tools
    overlap: Literal["drop", "keep"] = "drop"  # with questions of supervised training

    def find_violations(self) -> Iterator[str]:
        yield from super().find_violations()
        if self.is_greedy:
            yield GREEDY_SAMPLES_MESSAGE
        rules = (self.closed_book_model, self.solver, *self.filters)
        if not any(rules) and self.overlap == "keep":
            yield "it keeps every question: set closed_book_model, solver, filters or overlap: drop"

    @property
    def sampled_models(self) -> set[str]:
        """Models of the run that the selection samples."""
        return {name for name in (self.closed_book_model, self.solver) if name is not None} - {
            TEACHER
        }


class ClosedBookConfig(ConfigSection):
    """Measurement of the accuracy of a model without tools, taken once; see runs/closed_book.py. It
    marks known questions if their source does not."""

    model: str | None = None  # a stage, or `start`; None: the model before any training to act
    samples: PositiveInt = 4  # of each question
    temperature: PositiveFloat = 0.7
    # number of training questions to measure, from the first, in addition to evaluation questions
    questions: int = Field(default=0, ge=0)


class CollectConfig(ConfigSection):
    """Demonstrations and pairs from a teacher; see fieldcraft.data.collect."""

    # maximum; one half is answered without tools, the other with; a team uses tools for all
    questions: PositiveInt = 20_000
    pair_questions: int = Field(default=3_000, ge=0)  # maximum tried both ways, for pairs
    attempts: PositiveInt = 4  # maximum per question, until one is correct
    # number to accept, after which the teacher stops; None: all correct ones
    coa: NonNegativeInt | None = None  # demonstrations with tools
    cot: NonNegativeInt | None = None  # demonstrations without
    pairs: NonNegativeInt | None = None
    max_thinking_share: Fraction01 = (
        0.25  # maximum share of pairs that choose thinking; the others choose an action
    )
    max_failure_rate: Fraction01 = 0.2  # of the attempts; above it, the run stops
    filters: Filters = Field(default={})  # of the demonstrations

    def find_violations(self) -> Iterator[str]:
        if self.pairs and not self.pair_questions:
            yield "pairs are of questions that are tried both ways: set pair_questions"

    @property
    def target_counts(self) -> dict[str, int | None]:
        """Maximum numbers of demonstrations by kind, and of pairs by chosen side; None: all."""
        if self.pairs is None:
            thinking = acting = None
        else:
            thinking = round(self.pairs * self.max_thinking_share)
            acting = self.pairs - thinking
        return {"coa": self.coa, "cot": self.cot, "acting": acting, "thinking": thinking}
