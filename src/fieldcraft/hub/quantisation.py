"""Weights in fewer bits than those that are trained, as the files beside them say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.records.reading import DamagedFileError, read_json
from fieldcraft.types import UserError

# Written beside the weights by AutoGPTQ, AutoAWQ and ModelOpt, whatever config.json says.
QUANTISATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


def require_unquantised(folder: Path, display_name: object) -> None:
    """Raise UserError for a folder with quantised weights (AWQ, GPTQ, bitsandbytes, FP8 and their
    kin); `display_name` is what the user calls it."""
    config_files = [name for name in QUANTISATION_FILES if (folder / name).exists()]
    if config_files or (method := _find_quantisation(folder)) is not None:
        evidence = f"see {config_files[0]}" if config_files else method
        raise UserError(
            f"{display_name} is quantised ({evidence}), and such weights cannot be trained or"
            " merged: use the unquantised model that it was made from."
        )


def _find_quantisation(folder: Path) -> str | None:
    """Return the method by which config.json says that the weights are quantised, None without
    one."""
    try:
        config: dict[str, Any] = read_json(folder / "config.json", dict[str, Any], "")
    except (DamagedFileError, OSError):
        return None  # which has a sentence of its own
    for part in (config, config.get("text_config")):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part, dict) and part.get(key):
                method = part[key].get("quant_method") if isinstance(part[key], dict) else None
                return str(method or f"see {key} in config.json")
    return None
