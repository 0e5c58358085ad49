"""Weights in fewer bits than those that are trained, as the files beside them say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.records.reading import Damaged, read_json
from fieldcraft.types import UserError

# Written beside the weights by AutoGPTQ, AutoAWQ and ModelOpt, whatever config.json says.
QUANTISED_BY = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


def refuse_quantised(folder: Path, named: object) -> None:
    """Raise UserError for a folder with quantised weights (AWQ, GPTQ, bitsandbytes, FP8 and their
    kin); `named` is what the user calls it."""
    beside = [name for name in QUANTISED_BY if (folder / name).exists()]
    if beside or (found := _quantisation(folder)) is not None:
        said = f"see {beside[0]}" if beside else found
        raise UserError(
            f"{named} is quantised ({said}), and such weights cannot be trained or merged: use the"
            " unquantised model that it was made from."
        )


def _quantisation(folder: Path) -> str | None:
    """Return the method by which config.json says that the weights are quantised, None without
    one."""
    try:
        config: dict[str, Any] = read_json(folder / "config.json", dict[str, Any], "")
    except (Damaged, OSError):
        return None  # which has a sentence of its own
    for part in (config, config.get("text_config")):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part, dict) and part.get(key):
                method = part[key].get("quant_method") if isinstance(part[key], dict) else None
                return str(method or f"see {key} in config.json")
    return None
