"""Saving and loading of models and trainer states, in the formats of transformers and torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldcraft.engine.model_files import write_model, write_tokenizer
from fieldcraft.records.reading import advise_renaming, advise_repair, raise_read_errors
from fieldcraft.train.model import to_dtype_name
from fieldcraft.train.parity import probe_model, require_export_parity
from fieldcraft.train.protocols import ProbeResult

STATE_FILE = "trainer.pt"  # trainer state of a checkpoint, next to its weights


def save_model(
    folder: Path,
    model: Any,
    tokenizer: Any,
    state: Mapping[str, Tensor] | None = None,
    probe: ProbeResult | None = None,
) -> None:
    """Write model and tokenizer in transformers format, and verify them by reading them back.

    Args:
        folder: target folder; a draft, because it is incomplete if this raises.
        model: transformers causal LM.
        tokenizer: tokenizer of the model.
        state: unrounded weights to write in place of the model's weights.
        probe: probe result of the policy that has these weights; None: of the model itself.

    Raises UserError if they cannot be written, or if the model that is read back differs.
    """
    probe = probe or probe_model(model)
    write_model(folder, model, state)
    write_tokenizer(folder, tokenizer)
    require_export_parity(folder, probe, to_dtype_name(model.dtype))


@contextmanager
def load_state(folder: Path, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield the trainer state of a checkpoint, to be restored inside the block. Raises UserError if
    it is damaged."""
    with raise_read_errors(folder / STATE_FILE, advise_repair(folder, advise_renaming(folder))):
        yield torch.load(folder / STATE_FILE, map_location=device, weights_only=True)
