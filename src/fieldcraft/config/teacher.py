"""Section of a recipe that configures the teacher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from fieldcraft.config.names import suggest_name
from fieldcraft.config.sampling import SamplingConfig
from fieldcraft.config.sections import NonNegativeNumber
from fieldcraft.config.validation_errors import describe_validation_error


def is_openai_url(url: str) -> bool:
    """Return whether a url is OpenAI's, which accepts fewer keys than servers of open models."""
    return urlsplit(url).hostname == "api.openai.com"


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
