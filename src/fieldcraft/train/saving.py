"""Models and states on the disk, as transformers and torch read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldcraft.records.files import writing
from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import remedy

STATE = "trainer.pt"  # of a checkpoint, beside its weights


def save_model(
    folder: Path, model: Any, tokenizer: Any, state: Mapping[str, Tensor] | None = None
) -> None:
    """Model and tokenizer as transformers loads them; `state` holds other weights than the model's
    own."""
    with writing(folder):
        model.save_pretrained(folder, state_dict=state)
        tokenizer.save_pretrained(folder)


@contextmanager
def read_state(folder: Path, device: torch.device) -> Iterator[dict[str, Any]]:
    """What a checkpoint keeps beside the weights, to be taken over inside the block. Raises
    UserError if it is damaged."""
    with reading(folder / STATE, remedy(folder, f"delete the folder {folder}")):
        yield torch.load(folder / STATE, map_location=device, weights_only=True)
