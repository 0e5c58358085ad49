"""Detection of quantised weights from the files next to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.records.reading import DamagedFileError, read_json
from fieldcraft.types import UserError

# Written next to the weights by AutoGPTQ, AutoAWQ and ModelOpt, regardless of config.json.
QUANTISATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


def require_unquantised(folder: Path, display_name: object) -> None:
    """Raise UserError for a folder with quantised weights (AWQ, GPTQ, bitsandbytes, FP8 and
    similar); `display_name` is the user's name for it."""
    config_files = [name for name in QUANTISATION_FILES if (folder / name).exists()]
    if config_files or (method := _find_quantisation(folder)) is not None:
        evidence = f"see {config_files[0]}" if config_files else method
        raise UserError(
            f"{display_name} is quantised ({evidence}), and such weights cannot be trained or"
            " merged: use the unquantised model that it was made from."
        )


def _find_quantisation(folder: Path) -> str | None:
    """Return the quantisation method according to config.json, None without one."""
    try:
        config: dict[str, Any] = read_json(folder / "config.json", dict[str, Any], "")
    except (DamagedFileError, OSError):
        return None  # which has its own message
    for part in (config, config.get("text_config")):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part, dict) and part.get(key):
                method = part[key].get("quant_method") if isinstance(part[key], dict) else None
                return str(method or f"see {key} in config.json")
    return None
