"""Base class of the sections of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from fieldcraft.config.validation_errors import describe_section_error
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
            sentence = describe_section_error(error, cast(type[BaseModel], cls))
            raise UserError(f"{cls.__name__}: {sentence}") from error


class ConfigSection(BaseModel, metaclass=_SectionType):
    """A section of a recipe. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
