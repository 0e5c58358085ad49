"""Models and states on the disk, as transformers and torch read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldcraft.engine.writing import write_model, write_tokenizer
from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import put_aside, remedy
from fieldcraft.train.learning import ProbeResult
from fieldcraft.train.model import name_of_type
from fieldcraft.train.parity import require_written, said_by_model

STATE = "trainer.pt"  # of a checkpoint, beside its weights


def save_model(
    folder: Path,
    model: Any,
    tokenizer: Any,
    state: Mapping[str, Tensor] | None = None,
    said: ProbeResult | None = None,
) -> None:
    """Write model and tokenizer as transformers loads them, and read them back.

    Args:
        folder: where; a draft, as it is not whole if this raises.
        model: a transformers causal LM.
        tokenizer: of the model.
        state: other weights than the model's own, which are these rounded.
        said: of the policy whose weights these are; None: of the model itself.

    Raises UserError if they cannot be written, and if what is read back says something else.
    """
    said = said or said_by_model(model)
    write_model(folder, model, state)
    write_tokenizer(folder, tokenizer)
    require_written(folder, said, name_of_type(model.dtype))


@contextmanager
def read_state(folder: Path, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield what a checkpoint keeps beside the weights, to be taken over inside the block. Raises
    UserError if it is damaged."""
    with reading(folder / STATE, remedy(folder, put_aside(folder))):
        yield torch.load(folder / STATE, map_location=device, weights_only=True)
