"""Sampling of a model of a run: the recipe's keys, over what the model's folder recommends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fieldcraft.config.complaints import first_problem
from fieldcraft.config.sampling import SAME_SAMPLES, SamplingConfig, decode_keys
from fieldcraft.engine.recommended import FILE, read_recommendation
from fieldcraft.records.events import Said, Sink
from fieldcraft.sampling import WHOLE, Truncation
from fieldcraft.types import UserError


@dataclass(frozen=True, slots=True)
class Decoding:
    """A temperature (0: greedy) and the limits of what can be sampled."""

    temperature: float
    truncation: Truncation = WHOLE

    def as_record(self) -> dict[str, Any]:
        """Return the settings as a report has them."""
        cut = self.truncation
        return {
            "temperature": self.temperature,
            "top_k": cut.top_k,
            "top_p": cut.top_p,
            "min_p": cut.min_p,
        }


GREEDY = Decoding(0.0)


def make_sampling(**keys: Any) -> SamplingConfig:
    """Return the sampling of keys that do not come from a recipe; without any it is greedy. Raises
    UserError for wrong ones."""
    try:
        return SamplingConfig(**keys)
    except ValidationError as error:
        _, clause, place = first_problem(error)
        where = f"{'.'.join(map(str, place))}: " if place else ""
        raise UserError(f"{where}{clause}.") from error


def resolve_sampling(
    settings: SamplingConfig, model: Path, emit: Sink, several: bool = False
) -> Decoding:
    """Return the sampling of a section from the model in a folder; what the folder recommends is
    said.

    Raises UserError where it recommends nothing, greedy sampling with the recipe's limits, or
    greedy sampling where `several` samples of a question are wanted.
    """
    keys = settings.given
    if settings.sampling == "model":
        found = read_recommendation(model)
        emit(Said(_told(model, found.keys, keys, found.unused)))
        keys = found.keys | keys
    try:
        decoding = Decoding(*decode_keys(keys, settings.usual_temperature))
    except ValueError as error:
        raise UserError(f"{error}.") from error
    if several and not decoding.temperature:
        raise UserError(f"{SAME_SAMPLES}.")
    return decoding


def _told(
    model: Path, found: Mapping[str, Any], own: Mapping[str, Any], unused: Mapping[str, Any]
) -> str:
    taken = {key: value for key, value in found.items() if key not in own}
    parts = [f"sampling: {_listed(taken)} of {model / FILE}" if taken else "sampling"]
    parts += [f"{_listed(own)} of the recipe"] if own else []
    parts += [f"{_listed(unused)} recommended there, but unknown here"] if unused else []
    return "; ".join(parts)


def _listed(keys: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value:g}" for key, value in keys.items())
