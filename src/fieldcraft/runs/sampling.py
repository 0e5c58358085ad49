"""Sampling settings of a run's model: the recipe's keys, over the model's generation settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fieldcraft.config.sampling import GREEDY_SAMPLES_MESSAGE, SamplingConfig, parse_sampling_keys
from fieldcraft.config.validation_errors import locate_validation_error
from fieldcraft.engine.generation_config import GENERATION_CONFIG_FILE, read_recommended_sampling
from fieldcraft.records.events import EventHandler, LogMessage
from fieldcraft.sampling import NO_TRUNCATION, Truncation
from fieldcraft.types import UserError


@dataclass(frozen=True, slots=True)
class Decoding:
    """Temperature (0: greedy) and truncation of sampling."""

    temperature: float
    truncation: Truncation = NO_TRUNCATION

    def as_record(self) -> dict[str, Any]:
        """Return the settings in the format of a report."""
        limits = self.truncation
        return {
            "temperature": self.temperature,
            "top_k": limits.top_k,
            "top_p": limits.top_p,
            "min_p": limits.min_p,
        }


GREEDY_DECODING = Decoding(0.0)


def make_sampling_config(**keys: Any) -> SamplingConfig:
    """Return the sampling settings for keys from outside a recipe; greedy by default. Raises
    UserError for invalid keys."""
    try:
        return SamplingConfig.model_validate(keys)
    except ValidationError as error:
        raise UserError(f"{locate_validation_error(error)}.") from error


def choose_decoding(
    run_settings: SamplingConfig, model: Path, emit: EventHandler, **keys: Any
) -> Decoding:
    """Return the decoding of keys from outside a recipe: greedy by default; with sampling="recipe",
    like the evaluation of the model's run. Raises UserError like `resolve_decoding`."""
    if keys.get("sampling") == "recipe" and keys.get("temperature") != 0:
        keys = {**run_settings.explicit_keys, "sampling": run_settings.sampling} | {
            key: value for key, value in keys.items() if key != "sampling"
        }
    return resolve_decoding(make_sampling_config(**keys), model, emit)


def resolve_decoding(
    settings: SamplingConfig, model: Path, emit: EventHandler, needs_variety: bool = False
) -> Decoding:
    """Return the sampling settings of a section for the model in a folder; recommendations of the
    folder are logged.

    Raises UserError if they are requested but missing, for greedy sampling with the recipe's
    limits, or for greedy sampling if `needs_variety`, that is, if several samples of a question are
    drawn.
    """
    keys = settings.explicit_keys
    if settings.sampling == "model":
        recommendation = read_recommended_sampling(model)
        emit(
            LogMessage(
                _describe_sampling(
                    model, recommendation.sampling_settings, keys, recommendation.ignored_settings
                )
            )
        )
        keys = recommendation.sampling_settings | keys
    try:
        decoding = Decoding(*parse_sampling_keys(keys, settings.default_temperature))
    except ValueError as error:
        raise UserError(f"{error}.") from error
    if needs_variety and not decoding.temperature:
        raise UserError(f"{GREEDY_SAMPLES_MESSAGE}.")
    return decoding


def _describe_sampling(
    model: Path,
    recommended: Mapping[str, Any],
    explicit: Mapping[str, Any],
    unused: Mapping[str, Any],
) -> str:
    applied = {key: value for key, value in recommended.items() if key not in explicit}
    parts = [
        f"sampling: {_format_keys(applied)} of {model / GENERATION_CONFIG_FILE}"
        if applied
        else "sampling"
    ]
    parts += [f"{_format_keys(explicit)} of the recipe"] if explicit else []
    parts += [f"{_format_keys(unused)} recommended there, but unknown here"] if unused else []
    return "; ".join(parts)


def _format_keys(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value:g}" for key, value in keys.items())
