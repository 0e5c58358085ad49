"""Instantiation of components from a class or function and its settings in a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import ValidationError

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import describe_exception, make_settings_model, suggest_name
from fieldcraft.config.validation_errors import describe_validation_error
from fieldcraft.types import UserError


def instantiate(
    kind: ComponentKind,
    name: str,
    factory: Callable[..., Any],
    settings: Mapping[str, Any],
    provided: Mapping[str, Any],
    other_keys: Collection[str] = (),
) -> Any:
    """Make a component from its settings by calling `factory`.

    Args:
        kind: kind of the component.
        name: name in the recipe.
        factory: class or function whose parameters are the settings.
        settings: settings in the recipe.
        provided: arguments from the framework, passed to factories that accept them.
        other_keys: additional keys of the recipe section, for suggestions in error messages.

    Raises UserError for settings that cannot be parsed or are invalid, and for a factory that
    fails.
    """
    try:
        section = make_settings_model(factory, provided)
        accepted = inspect.signature(factory).parameters
    except (NameError, TypeError, ValueError) as error:
        raise UserError(
            f"the settings of the {kind} '{name}' cannot be read ({error}): give each argument of"
            f" {factory.__name__} a type hint that its module imports."
        ) from error
    try:
        checked = section.model_validate(dict(settings))
    except ValidationError as error:
        keys = [*section.model_fields, *other_keys]
        raise UserError(_describe_settings_error(error, f"the {kind} '{name}'", keys)) from error
    explicit = {key: getattr(checked, key) for key in checked.model_fields_set}
    try:
        return factory(**{k: v for k, v in provided.items() if k in accepted}, **explicit)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the {kind} '{name}' cannot be made from its settings ({describe_exception(error)}):"
            " correct them."
        ) from error


def _describe_settings_error(error: ValidationError, component: str, keys: list[str]) -> str:
    kind, clause, path = describe_validation_error(error)
    key = str(path[0])
    if kind in ("extra_forbidden", "missing") and len(path) > 1:
        return f"the setting '{'.'.join(map(str, path))}' of {component} is wrong: {clause}."
    if kind == "extra_forbidden":
        return (
            f"{component} has no setting '{key}'; "
            f"{suggest_name(key, keys) if keys else 'it accepts no settings.'}"
        )
    if kind == "missing":
        return f"{component} needs the setting '{key}': add it next to the name."
    return f"the setting '{key}' of {component} is wrong: {clause}."
