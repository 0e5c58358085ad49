"""Models and states on the disk, as transformers and torch read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldcraft.engine.model_files import write_model, write_tokenizer
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.records.remedies import advise_renaming, advise_repair
from fieldcraft.train.model import to_dtype_name
from fieldcraft.train.parity import probe_model, require_export_parity
from fieldcraft.train.protocols import ProbeResult

STATE_FILE = "trainer.pt"  # of a checkpoint, beside its weights


def save_model(
    folder: Path,
    model: Any,
    tokenizer: Any,
    state: Mapping[str, Tensor] | None = None,
    probe: ProbeResult | None = None,
) -> None:
    """Write model and tokenizer as transformers loads them, and read them back.

    Args:
        folder: where; a draft, as it is not whole if this raises.
        model: a transformers causal LM.
        tokenizer: of the model.
        state: other weights than the model's own, which are these rounded.
        probe: of the policy whose weights these are; None: of the model itself.

    Raises UserError if they cannot be written, and if what is read back says something else.
    """
    probe = probe or probe_model(model)
    write_model(folder, model, state)
    write_tokenizer(folder, tokenizer)
    require_export_parity(folder, probe, to_dtype_name(model.dtype))


@contextmanager
def load_state(folder: Path, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield what a checkpoint keeps beside the weights, to be taken over inside the block. Raises
    UserError if it is damaged."""
    with raise_read_errors(folder / STATE_FILE, advise_repair(folder, advise_renaming(folder))):
        yield torch.load(folder / STATE_FILE, map_location=device, weights_only=True)
