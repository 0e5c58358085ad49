"""Sections of a recipe that sample models before training.

They are the selection, the measurement without tools, the teacher, and the collection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.choices import Filters, QuestionFilters
from fieldcraft.config.names import suggest_name
from fieldcraft.config.numbers import (
    NonNegativeNumber,
    OpenFraction,
    PositiveTemperature,
    UnitFraction,
)
from fieldcraft.config.sampling import GREEDY_SAMPLES_MESSAGE, SamplingConfig
from fieldcraft.config.validation_errors import describe_validation_error

TEACHER = "teacher"


class SelectConfig(SamplingConfig):
    """Selection of the questions for reinforcement learning; see extensions/curation/select.py."""

    default_temperature: ClassVar[float] = 1.0

    questions: PositiveInt = 1000  # maximum number of candidates
    filters: QuestionFilters = Field(default={})  # applied to the questions before sampling
    # model that samples without tools: a stage, `start` or `teacher`; None: no such rule
    closed_book_model: str | None = "start"
    closed_book_samples: PositiveInt = 32  # of each question, without tools
    max_closed_book_accuracy: UnitFraction = 0.3  # share of correct samples
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
        yield from self._find_unused_keys()

    def _find_unused_keys(self) -> Iterator[str]:
        """Yield a clause for each key of a rule that is off."""
        needed = {
            "closed_book_samples": "closed_book_model",
            "max_closed_book_accuracy": "closed_book_model",
            "solver_rollouts": "solver",
        }
        for key, model in needed.items():
            if not self.has_default(key) and getattr(self, model) is None:
                yield f"{key} needs a {model}: set it, or remove {key}"
        if self.closed_book_model is None and self.solver is None:
            own = list(self.explicit_keys) + ["sampling"] * (self.sampling != "recipe")
            for key in own:
                yield f"{key} needs a model that is sampled: set closed_book_model or solver"

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
    temperature: PositiveTemperature = 0.7
    # number of training questions to measure, from the first, in addition to evaluation questions
    questions: int = Field(default=0, ge=0)


class TeacherConfig(SamplingConfig):
    """Teacher that writes demonstrations: with `url`, a model at an OpenAI-compatible endpoint;
    else the checkpoint folder `model`; without either, the oracle of the world. In a `team`, it is
    the model of each member; without a model, the team is the world's."""

    default_temperature: ClassVar[float] = 0.7

    url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"  # environment variable with the key
    concurrency: PositiveInt = 16  # concurrent attempts
    timeout_seconds: PositiveFloat = 120.0
    retries: int = Field(default=5, ge=0)
    prices: tuple[NonNegativeNumber, NonNegativeNumber] | None = (
        None  # per million input and output tokens
    )
    team: str | None = None
    members: dict[str, dict[str, Any]] = Field(default={})  # member -> its values of the keys above

    def find_violations(self) -> Iterator[str]:
        own = [*super().find_violations(), *self._find_model_violations()]
        yield from own
        if self.members and self.team is None:
            yield "members needs a team: set it, as in team: afm, or remove members"
        for name in self.members if not own else ():  # members inherit the violations
            try:
                self.member_config(name)
            except ValueError as error:
                yield str(error)

    def _find_model_violations(self) -> Iterator[str]:
        if self.sampling == "model" and (self.model is None or self.url is not None):
            yield (
                "sampling: model reads the folder of a model: set model to one, without a url, or"
                " set temperature and the like instead"
            )
        if self.url and is_openai_url(self.url) and {"top_k", "min_p"} & self.explicit_keys.keys():
            yield "OpenAI's models do not support top_k and min_p: remove them"

    def member_config(self, name: str) -> TeacherConfig:
        """Return the settings of a member's model."""
        shared = self.model_dump(exclude={"team", "members"})
        own = self.members.get(name, {})
        for key in own:
            if key not in shared:
                raise ValueError(
                    f"the member '{name}' has no key '{key}'; {suggest_name(key, shared)}"
                )
        try:
            return TeacherConfig.model_validate(shared | own)
        except ValidationError as error:
            _, clause, path = describe_validation_error(error)
            key = f"the key '{path[0]}' of " if path else ""
            raise ValueError(f"{key}the member '{name}': {clause}") from error


def is_openai_url(url: str) -> bool:
    """Return whether a url is OpenAI's, which accepts fewer keys than servers of open models."""
    return urlsplit(url).hostname == "api.openai.com"


class CollectConfig(ConfigSection):
    """Demonstrations and pairs from a teacher; see extensions/curation/collection.py."""

    # maximum; one half is answered without tools, the other with; a team uses tools for all
    questions: PositiveInt = 20_000
    pair_questions: int = Field(default=3_000, ge=0)  # maximum tried both ways, for pairs
    attempts: PositiveInt = 4  # maximum per question, until one is correct
    # number to accept, after which the teacher stops; None: all correct ones
    coa: NonNegativeInt | None = None  # demonstrations with tools
    cot: NonNegativeInt | None = None  # demonstrations without
    pairs: NonNegativeInt | None = None
    max_thinking_share: OpenFraction = (
        0.25  # maximum share of pairs that choose thinking; the others choose an action
    )
    max_failure_rate: OpenFraction = 0.2  # of the attempts; above it, the run stops
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
            thinking = int(self.pairs * self.max_thinking_share + 1e-9)  # the share is a maximum
            acting = self.pairs - thinking
        return {"coa": self.coa, "cot": self.cot, "acting": acting, "thinking": thinking}
