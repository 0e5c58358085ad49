"""Weights on their way to a server: files, a label, and what proves that they have arrived."""

from __future__ import annotations

import math
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray

from fieldcraft.engine.comparison import even_ids
from fieldcraft.engine.sizes import positions
from fieldcraft.engine.writing import write_model, write_tokenizer
from fieldcraft.records.files import make_folder
from fieldcraft.types import UserError

Floats = NDArray[np.float32]
T = TypeVar("T")

PROBE_TOKENS = 64
PROBE_TEMPERATURE = 0.5  # not 1, or raw log-probabilities could not be told from processed ones
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Proof:
    """The trained model's answer about a fixed text of ids: `logprobs` [n - 1] of all ids but the
    first, and `after` [V] of every token behind the last, at PROBE_TEMPERATURE; None: not known."""

    ids: list[int]
    logprobs: Floats
    after: Floats | None

    def gap(self, logprobs: Sequence[float], sampled: int, logprob: float) -> float:
        """Return the distance of a server's answer from it: the mean difference in nats of the
        log-probability of an id, or that of a token which it sampled, whichever is more; NaN if it
        said NaN."""
        text = self._mean_gap(logprobs)
        token = 0.0 if self.after is None else abs(logprob - float(self.after[sampled]))
        return math.nan if math.isnan(text + token) else max(text, token)

    def distance(self, other: Proof) -> float:
        """Return the distance of another model from it, by what both say of the same text; NaN if
        either said NaN."""
        return self._mean_gap(other.logprobs)

    def _mean_gap(self, logprobs: Sequence[float] | Floats) -> float:
        return float(np.abs(np.asarray(logprobs, np.float32) - self.logprobs).mean())


class Weights(Protocol):
    """A policy that was published."""

    @property
    def label(self) -> str:
        """Label unlike that of any other policy, of this run or another."""

    @property
    def version(self) -> int:
        """Version that is written on the policy's tokens."""

    @property
    def proof(self) -> Proof:
        """Proof that the trained model gives of the probe."""

    @property
    def folder(self) -> Path:
        """Folder in which a server that starts finds it."""

    @property
    def bytes(self) -> int:
        """Bytes of its tensors."""


class Origin(Protocol):
    """The place where a policy is trained; an adapter is merged."""

    def write(self, folder: Path) -> Proof:
        """Write it as it is now into a folder, as transformers loads it."""


@final
class Here:
    """A model of this process."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def write(self, folder: Path) -> Proof:
        write_model(folder, self._model, merged_state(self._model))
        return prove(self._model)


@dataclass(frozen=True)
class Published:
    """`Weights` in files. They are deleted when nobody holds this any more."""

    label: str
    version: int
    folder: Path
    proof: Proof

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))


def write_weights(origin: Origin, tokenizer: Any, version: int, place: Path) -> Published:
    """Write a policy as it is now into a new folder in `place`, and return it.

    Raises UserError if the files cannot be written.
    """
    folder, proof = folder_of(origin.write, tokenizer, place)
    published = Published(uuid.uuid4().hex, version, folder, proof)
    delete_with(published, folder)
    return published


def folder_of(write: Callable[[Path], T], tokenizer: Any, place: Path) -> tuple[Path, T]:
    """Make a new folder in `place` with the tokenizer and what `write` writes. Returns it, and what
    `write` returns.

    Raises UserError if the files cannot be written.
    """
    try:
        make_folder(place)
        folder = Path(tempfile.mkdtemp(prefix="weights-", dir=place))
        told = write(folder)
        write_tokenizer(folder, tokenizer)
    except OSError as error:
        raise UserError(
            f"the weights for vLLM cannot be written to {place} ({error.strerror or error}): make"
            " room, or set engine.exchange to another folder."
        ) from error
    return folder, told


def delete_with(holder: Any, folder: Path) -> None:
    """Delete a folder when nobody holds the holder any more."""
    weakref.finalize(holder, shutil.rmtree, folder, ignore_errors=True)


def merged_state(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a model, by the names that they have without an adapter.

    What a LoRA layer adds is added to a copy, in float32: the model goes on being trained, and
    adding and subtracting it in place would leave rounding errors in weights that are frozen.
    """
    state: dict[str, torch.Tensor] = model.state_dict()
    layers = [
        n.removesuffix(".base_layer.weight") for n in state if n.endswith("base_layer.weight")
    ]
    plain = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in state.items()
        if not any(name.startswith(f"{layer}.lora_") for layer in layers)
    }
    with torch.no_grad():
        for layer in layers:
            module = model.get_submodule(layer)
            (adapter,) = module.active_adapters
            added = module.get_delta_weight(adapter).float()
            plain[f"{layer}.weight"] = plain[f"{layer}.weight"].float() + added
    return plain


def probe_ids(config: Any) -> list[int]:
    """Return the text of ids that a model of a configuration is asked about."""
    count = min(PROBE_TOKENS, (positions(config) or PROBE_TOKENS + 1) - 1)
    return even_ids(1, count, int(config.vocab_size))


@torch.no_grad()
def prove(model: Any) -> Proof:
    """Return the answer of the model about ids from all over its vocabulary."""
    ids = probe_ids(model.config.get_text_config())
    model.eval()  # it may have been trained since
    logits = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0].float()
    every = logits[:-1].log_softmax(-1)
    chosen = every.gather(1, torch.tensor(ids[1:], device=model.device)[:, None])[:, 0]
    after = (logits[-1] / PROBE_TEMPERATURE).log_softmax(-1)
    return Proof(ids, chosen.cpu().numpy(), after.cpu().numpy())


def place_for(model: Any, otherwise: Path) -> Path:
    """Return the folder through which weights pass fastest on one machine: its shared memory, if
    that has room for two sets, else the folder `otherwise`."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 3 * size:
        return SHARED_MEMORY
    return otherwise
