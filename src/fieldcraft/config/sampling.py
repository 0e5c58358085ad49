"""Sampling settings of recipe sections that do not train, and numbers of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.numbers import PositiveFraction, Temperature
from fieldcraft.sampling import Truncation
from fieldcraft.types import Task

TRUNCATION_KEYS = ("top_k", "top_p", "min_p")
DEFAULT_SOURCE = "default"  # key of all questions without another key
GREEDY_SAMPLES_MESSAGE = "greedy samples of a question are identical: set temperature, as in 0.6"


class SamplingConfig(ConfigSection):
    """Sampling keys of a section; None if not set. Unset keys are the default temperature of the
    section, and no truncation; with `sampling: model`, they are the recommendations in the model
    folder. Truncation is described in `sampling.Truncation`."""

    default_temperature: ClassVar[float] = 0.0

    sampling: Literal["recipe", "model"] = "recipe"
    temperature: Temperature | None = None  # 0: greedy
    top_k: NonNegativeInt | None = None  # 0: all
    top_p: PositiveFraction | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None

    def find_violations(self) -> Iterator[str]:
        try:
            if self.sampling == "recipe":
                parse_sampling_keys(self.explicit_keys, self.default_temperature)
        except ValueError as error:
            yield str(error)

    @property
    def explicit_keys(self) -> dict[str, Any]:
        """Sampling keys that the recipe sets."""
        values = {key: getattr(self, key) for key in ("temperature", *TRUNCATION_KEYS)}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def is_greedy(self) -> bool:
        """Return whether the recipe sets greedy sampling. The recommendations of a model are
        unknown here."""
        usual = self.default_temperature if self.sampling == "recipe" else 1.0
        return self.explicit_keys.get("temperature", usual) == 0


def parse_sampling_keys(
    keys: Mapping[str, Any], default_temperature: float
) -> tuple[float, Truncation]:
    """Return the temperature, `default_temperature` if not set, and the truncation. Raises
    ValueError for truncated greedy sampling."""
    temperature = keys.get("temperature", default_temperature)
    truncation = Truncation(**{key: keys[key] for key in TRUNCATION_KEYS if key in keys})
    if truncation and not temperature:
        named = " and ".join(key for key in TRUNCATION_KEYS if key in keys)
        raise ValueError(
            f"{named} would have no effect on greedy sampling: set temperature above 0, or remove"
            f" {named}"
        )
    return temperature, truncation


def _name_sources(samples: Any) -> Any:
    """Return the number of samples by source; a single number applies to all questions."""
    return samples if isinstance(samples, dict) else {DEFAULT_SOURCE: samples}


# Number of samples of a question by its split or data source; * matches any text.
SampleCounts = Annotated[dict[str, PositiveInt], BeforeValidator(_name_sources)]


def count_samples(samples: Mapping[str, int], task: Task) -> int:
    """Return the number of samples of a question, by the first key that matches its split or the
    data source in its file, ignoring case; 1 if there is no key."""
    fitting = (count for key, count in samples.items() if _matches_source(key, task))
    return next(fitting, samples.get(DEFAULT_SOURCE, 1))


def _matches_source(key: str, task: Task) -> bool:
    labels = (str(task.meta.get(name, "")).lower() for name in ("split", "data_source"))
    return any(fnmatchcase(label, key.lower()) for label in labels)


def describe_sample_counts(samples: Mapping[str, int], tasks: Sequence[Task]) -> list[str]:
    """Return notes on the number of samples of these questions; none if all have one sample."""
    if max(samples.values(), default=1) == 1:
        return []
    counts = Counter(count_samples(samples, task) for task in tasks)
    notes = [f"{n} with {count} samples" for count, n in sorted(counts.items()) if count > 1]
    unused = [
        key
        for key in samples
        if key != DEFAULT_SOURCE and not any(_matches_source(key, t) for t in tasks)
    ]
    return notes + ([f"none of {' or '.join(unused)}"] if unused else [])
