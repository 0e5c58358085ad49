"""The section of a recipe that says who shows how to answer."""

from __future__ import annotations

from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from fieldcraft.config.complaints import first_problem
from fieldcraft.config.names import suggestion
from fieldcraft.config.sampling import SamplingConfig
from fieldcraft.config.sections import Rate


def is_openai(url: str) -> bool:
    """Return whether a url is that of OpenAI itself, which takes fewer keys than servers of open
    models."""
    return urlsplit(url).hostname == "api.openai.com"


class Teacher(SamplingConfig):
    """Teacher that shows how to answer: with `url` the model of an OpenAI-compatible endpoint, else
    the checkpoint folder `model`, and with neither the oracle of the world. In a `team` it is the
    model of every seat; without a model, the team is that of the world."""

    usual_temperature: ClassVar[float] = 0.7

    url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the key
    concurrency: PositiveInt = 16  # attempts side by side
    timeout_seconds: PositiveFloat = 120.0
    retries: int = Field(default=5, ge=0)
    prices: tuple[Rate, Rate] | None = None  # of a million tokens read, and written
    team: str | None = None
    seats: dict[str, dict[str, Any]] = Field(default={})  # seat -> its own values of keys above

    @model_validator(mode="after")
    def _sampled_as_it_can_be(self) -> Self:
        if self.sampling == "model" and (self.model is None or self.url is not None):
            raise ValueError(
                "sampling: model reads the folder of a model: set model to one, without a url, or"
                " set temperature and the like instead"
            )
        if self.url and is_openai(self.url) and {"top_k", "min_p"} & self.given.keys():
            raise ValueError("OpenAI's own models take no top_k and no min_p: remove them")
        return self

    @model_validator(mode="after")
    def _seats_can_be_read(self) -> Self:
        if self.seats and self.team is None:
            raise ValueError("seats are those of a team, so set team as well, as in team: afm")
        for name in self.seats:
            self.seat(name)
        return self

    def seat(self, name: str) -> Teacher:
        """Return the settings of the model in a seat."""
        shared = self.model_dump(exclude={"team", "seats"})
        own = self.seats.get(name, {})
        for key in own:
            if key not in shared:
                raise ValueError(f"the seat '{name}' has no key '{key}'; {suggestion(key, shared)}")
        try:
            return Teacher.model_validate(shared | own)
        except ValidationError as error:
            _, clause, place = first_problem(error)
            raise ValueError(f"the key '{place[0]}' of the seat '{name}': {clause}") from error
