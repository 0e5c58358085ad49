"""Making of parts: from a class or function and its settings in a recipe to the part itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import ValidationError

from fieldcraft.config.complaints import first_problem
from fieldcraft.config.names import Kind, cause_of, settings_of, suggestion
from fieldcraft.types import UserError


def make_part(
    kind: Kind,
    name: str,
    factory: Callable[..., Any],
    settings: Mapping[str, Any],
    offered: Mapping[str, Any],
    others: Collection[str] = (),
) -> Any:
    """Make a part from its settings by calling `factory`.

    Args:
        kind: what it is.
        name: as in the recipe.
        factory: a class or a function; its arguments are the settings.
        settings: what the recipe says.
        offered: arguments of the framework's, given to a factory that takes them.
        others: keys beside the settings that the recipe may have; one is named where it is nearest.

    Raises UserError for settings that cannot be read or do not fit, and for a factory that fails.
    """
    try:
        section = settings_of(factory, offered)
        taken = inspect.signature(factory).parameters
    except (NameError, TypeError, ValueError) as error:
        raise UserError(
            f"the settings of the {kind} '{name}' cannot be read ({error}): give each argument of"
            f" {factory.__name__} a type hint that its module imports."
        ) from error
    try:
        checked = section.model_validate(dict(settings))
    except ValidationError as error:
        keys = [*section.model_fields, *others]
        raise UserError(_sentence(error, f"the {kind} '{name}'", keys)) from error
    given = {key: getattr(checked, key) for key in checked.model_fields_set}
    try:
        return factory(**{k: v for k, v in offered.items() if k in taken}, **given)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the {kind} '{name}' cannot be made from its settings ({cause_of(error)}): correct"
            " them."
        ) from error


def _sentence(error: ValidationError, part: str, keys: list[str]) -> str:
    kind, clause, place = first_problem(error)
    key = str(place[0])
    if kind in ("extra_forbidden", "missing") and len(place) > 1:
        return f"the setting '{'.'.join(map(str, place))}' of {part} is wrong: {clause}."
    if kind == "extra_forbidden":
        return (
            f"{part} has no setting '{key}'; {suggestion(key, keys) if keys else 'it takes none.'}"
        )
    if kind == "missing":
        return f"{part} needs the setting '{key}': add it beside the name."
    return f"the setting '{key}' of {part} is wrong: {clause}."
