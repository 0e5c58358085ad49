"""Base class of the sections of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from fieldcraft.config.truth_values import reject_truth_values
from fieldcraft.config.validation_errors import describe_section_errors
from fieldcraft.types import UserError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic does not export it


class _SectionType(ModelMetaclass):
    """Type of sections: its constructors, which users call in Python, raise UserError.

    pydantic builds nested sections without them, so that an error keeps its path within the
    outermost section. `model_validate` raises pydantic's ValidationError.
    """

    def __call__(cls, *args: Any, **keys: Any) -> Any:
        try:
            return super().__call__(*args, **keys)
        except ValidationError as error:
            sentences = describe_section_errors(error, cast(type[BaseModel], cls))
            raise UserError(f"{cls.__name__}: {sentences[0]}") from error


class ConfigSection(BaseModel, metaclass=_SectionType):
    """A section of a recipe. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    _reject_truth_values = field_validator("*", mode="wrap")(reject_truth_values)

    def find_violations(self) -> Iterator[str]:
        """Yield a clause for each violated rule between the keys of this section. Rules between
        sections are in `config/rules.py`."""
        yield from ()

    def has_default(self, key: str) -> bool:
        """Return whether a key has its default value."""
        field = type(self).model_fields[key]
        return bool(getattr(self, key) == field.get_default(call_default_factory=True))

    @model_validator(mode="after")
    def _require_no_violations(self) -> Self:
        details: list[InitErrorDetails] = [
            {"type": PydanticCustomError("violation", "{clause}", {"clause": c}), "input": self}
            for c in self.find_violations()
        ]
        if details:  # pydantic adds all of them to the errors of the outer section
            raise ValidationError.from_exception_data(type(self).__name__, details)
        return self
