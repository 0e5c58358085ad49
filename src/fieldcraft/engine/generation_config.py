"""Sampling settings recommended by a model's authors in its `generation_config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fieldcraft.config.numbers import NonNegativeNumber, PositiveFraction
from fieldcraft.config.sampling import TRUNCATION_KEYS
from fieldcraft.records.reading import read_json
from fieldcraft.types import UserError

GENERATION_CONFIG_FILE = "generation_config.json"
# Settings that change probabilities in unsupported ways, and their neutral values.
UNSUPPORTED_SETTINGS: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "num_beams": 1,
}


class _EosConfig(BaseModel):
    """End-of-sequence ids in `generation_config.json`, or in `config.json` if that is missing."""

    eos_token_id: int | list[int] | None = None


class RecommendedSampling(BaseModel):
    """Sampling settings of `generation_config.json`; None if not set."""

    model_config = ConfigDict(extra="allow")

    do_sample: bool | None = None
    temperature: NonNegativeNumber | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None  # 0 or -1: all
    top_p: PositiveFraction | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None

    @property
    def sampling_settings(self) -> dict[str, Any]:
        """Temperature and truncation limits. `do_sample: false` means greedy, regardless of the
        other settings. If `do_sample` is missing, a temperature or a limit implies sampling. The
        default temperature is 1."""
        if self.do_sample is False or self.temperature == 0:
            return {"temperature": 0.0}
        values = {key: getattr(self, key) for key in ("temperature", *TRUNCATION_KEYS)}
        settings = {key: value for key, value in values.items() if value is not None}
        if "top_k" in settings:
            settings["top_k"] = max(settings["top_k"], 0)
        return {"temperature": 1.0} | settings if settings or self.do_sample else {}

    @property
    def ignored_settings(self) -> dict[str, Any]:
        """Recommended settings that are not supported and therefore ignored."""
        extra = self.model_extra or {}
        return {
            key: extra[key]
            for key, neutral in UNSUPPORTED_SETTINGS.items()
            if extra.get(key) not in (None, neutral)
        }


def read_eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Return the end-of-sequence token ids that the files in a model folder specify."""
    path = next(
        (folder / f for f in (GENERATION_CONFIG_FILE, "config.json") if (folder / f).exists()), None
    )
    if path is None:
        return ()
    eos = _EosConfig.model_validate(read_json(path, _EosConfig, "copy it again")).eos_token_id
    return tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)


def read_recommended_sampling(folder: Path) -> RecommendedSampling:
    """Return the recommended sampling settings of a model folder. Raises UserError if it has
    none."""
    advice = "set temperature and the like in the recipe, without sampling: model"
    path = folder / GENERATION_CONFIG_FILE
    recommended = RecommendedSampling()
    if path.exists():
        recommended = RecommendedSampling.model_validate(
            read_json(path, RecommendedSampling, advice)
        )
    if not recommended.sampling_settings:
        raise UserError(
            f"{folder} contains no recommended sampling settings ({GENERATION_CONFIG_FILE}): "
            f"{advice}."
        )
    return recommended
