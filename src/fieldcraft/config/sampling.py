"""Settings by which sections of a recipe sample without training, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from fieldcraft.sampling import Truncation
from fieldcraft.types import Task

LIMITS = ("top_k", "top_p", "min_p")
DEFAULT = "default"  # the key for the questions that no other key names
SAME_SAMPLES = "greedy samples of a question are all the same: set temperature, as in 0.6"


class SamplingConfig(BaseModel):
    """Keys of a section; None: not given. What is not given is the section's usual temperature, and
    no limit; with `sampling: model` it is what the folder of the model recommends. The limits are
    those of `sampling.Truncation`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    usual_temperature: ClassVar[float] = 0.0

    sampling: Literal["recipe", "model"] = "recipe"
    temperature: Annotated[float, Field(ge=0)] | None = None  # 0: greedy
    top_k: NonNegativeInt | None = None  # 0: all
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _limits_have_an_effect(self) -> Self:
        if self.sampling == "recipe":
            decode_keys(self.given, self.usual_temperature)
        return self

    @property
    def given(self) -> dict[str, Any]:
        """Keys of sampling that the recipe itself sets."""
        values = {key: getattr(self, key) for key in ("temperature", *LIMITS)}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def is_greedy(self) -> bool:
        """Return whether the recipe asks for greedy sampling; what a model recommends is not known
        here."""
        usual = self.usual_temperature if self.sampling == "recipe" else 1.0
        return self.given.get("temperature", usual) == 0


def decode_keys(keys: Mapping[str, Any], usual: float) -> tuple[float, Truncation]:
    """Return the temperature, `usual` where none is given, and the limits. Raises ValueError for
    limits of greedy sampling."""
    temperature = keys.get("temperature", usual)
    truncation = Truncation(**{key: keys[key] for key in LIMITS if key in keys})
    if truncation and not temperature:
        named = " and ".join(key for key in LIMITS if key in keys)
        raise ValueError(
            f"{named} would change nothing about greedy sampling: set temperature above 0, or leave"
            f" {named} out"
        )
    return temperature, truncation


def _by_source(samples: Any) -> Any:
    """Return the number of samples by source: a single number is that of all questions."""
    return samples if isinstance(samples, dict) else {DEFAULT: samples}


# How many samples of each question, by its split or data source, in which * stands for any text.
Samples = Annotated[dict[str, PositiveInt], BeforeValidator(_by_source)]


def count_samples(samples: Mapping[str, int], task: Task) -> int:
    """Return the number of samples of a question: by the first key that its split, or the source
    that its file names, fits, whatever the case of letters; 1 where nothing is said."""
    fitting = (count for key, count in samples.items() if _fits(key, task))
    return next(fitting, samples.get(DEFAULT, 1))


def _fits(key: str, task: Task) -> bool:
    labels = (str(task.meta.get(name, "")).lower() for name in ("split", "data_source"))
    return any(fnmatchcase(label, key.lower()) for label in labels)


def sample_notes(samples: Mapping[str, int], tasks: Sequence[Task]) -> list[str]:
    """Return notes on what a mapping comes to for these questions; none where all have one
    sample."""
    if max(samples.values()) == 1:
        return []
    counts = Counter(count_samples(samples, task) for task in tasks)
    notes = [f"{n} with {count} samples" for count, n in sorted(counts.items()) if count > 1]
    idle = [key for key in samples if key != DEFAULT and not any(_fits(key, t) for t in tasks)]
    return notes + ([f"none of {' or '.join(idle)}"] if idle else [])
