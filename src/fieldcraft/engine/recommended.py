"""Sampling as the makers of a model recommend it, in `generation_config.json` of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fieldcraft.config.sampling import LIMITS
from fieldcraft.records.reading import read_json
from fieldcraft.types import UserError

FILE = "generation_config.json"
# What changes probabilities in ways that this project does not have, and its value for no change.
UNUSED: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "num_beams": 1,
}


class _Ends(BaseModel):
    """The end of a sequence, in `generation_config.json` or, without one, in `config.json`."""

    eos_token_id: int | list[int] | None = None


class Recommendation(BaseModel):
    """The part of such a file that is about sampling; None: nothing."""

    model_config = ConfigDict(extra="allow")

    do_sample: bool | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None  # 0 or -1: all
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None

    @property
    def keys(self) -> dict[str, Any]:
        """Temperature and limits. `do_sample: false` is greedy, whatever else the file holds; where
        it is left out, a temperature or a limit means sampling. A temperature left out is 1."""
        if self.do_sample is False or self.temperature == 0:
            return {"temperature": 0.0}
        said = {key: getattr(self, key) for key in ("temperature", *LIMITS)}
        found = {key: value for key, value in said.items() if value is not None}
        if "top_k" in found:
            found["top_k"] = max(found["top_k"], 0)
        return {"temperature": 1.0} | found if found or self.do_sample else {}

    @property
    def unused(self) -> dict[str, Any]:
        """The other recommendations, which are not followed."""
        extra = self.model_extra or {}
        return {
            key: extra[key]
            for key, neutral in UNUSED.items()
            if extra.get(key) not in (None, neutral)
        }


def read_ends(folder: Path) -> tuple[int, ...]:
    """Return the tokens after which generation with the model in a folder stops, by its own
    files."""
    path = next((folder / f for f in (FILE, "config.json") if (folder / f).exists()), None)
    if path is None:
        return ()
    found = _Ends.model_validate(read_json(path, _Ends, "copy it again")).eos_token_id
    return tuple(found) if isinstance(found, list) else () if found is None else (found,)


def read_recommendation(folder: Path) -> Recommendation:
    """Return the recommendation of a folder. Raises UserError where it recommends no way to
    sample."""
    advice = "set temperature and the like in the recipe, without sampling: model"
    path = folder / FILE
    found = Recommendation()
    if path.exists():
        found = Recommendation.model_validate(read_json(path, Recommendation, advice))
    if not found.keys:
        raise UserError(f"{folder} recommends no way to sample ({FILE}): {advice}.")
    return found
