"""Weight snapshots for servers: files, a label, and a probe that verifies the served weights."""

from __future__ import annotations

import math
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldcraft.engine.model_files import write_model, write_tokenizer
from fieldcraft.engine.parity import make_spaced_ids
from fieldcraft.engine.sizes import get_max_positions
from fieldcraft.records.files import make_folder
from fieldcraft.types import UserError

FloatArray = NDArray[np.float32]
T = TypeVar("T")

PROBE_TOKENS = 64
PROBE_TEMPERATURE = 0.5  # not 1, to distinguish raw log-probabilities from processed ones
SHARED_MEMORY_FOLDER = Path("/dev/shm")
TRAINED_ADAPTER = "default"  # PEFT's name of the trained adapter
BASE_LAYER_SUFFIX = ".base_layer"  # suffix in PEFT of a layer that has an adapter


@dataclass(frozen=True)
class ProbeLogprobs:
    """Log-probabilities of the trained model on a fixed sequence of ids: `logprobs` [n - 1] of all
    ids except the first, and `next_logprobs` [V] of the next token, at PROBE_TEMPERATURE; None if
    not known."""

    ids: list[int]
    logprobs: FloatArray
    next_logprobs: FloatArray | None

    def reply_difference(self, logprobs: Sequence[float], sampled: int, logprob: float) -> float:
        """Return the difference of a server's reply from this probe in nats: the maximum of the
        mean absolute difference over the ids and the difference of the sampled token; NaN if the
        reply contains NaN."""
        text = self._mean_abs_difference(logprobs)
        token = (
            0.0 if self.next_logprobs is None else abs(logprob - float(self.next_logprobs[sampled]))
        )
        return math.nan if math.isnan(text + token) else max(text, token)

    def mean_abs_difference(self, other: ProbeLogprobs) -> float:
        """Return the mean absolute difference from another model's log-probabilities of the same
        ids, in nats; NaN if either contains NaN."""
        return self._mean_abs_difference(other.logprobs)

    def _mean_abs_difference(self, logprobs: Sequence[float] | FloatArray) -> float:
        return float(np.abs(np.asarray(logprobs, np.float32) - self.logprobs).mean())


class WeightSnapshot(Protocol):
    """Published weights of a policy."""

    @property
    def label(self) -> str:
        """Label that is unique across policies and runs."""

    @property
    def version(self) -> int:
        """Version that is recorded for the policy's tokens."""

    @property
    def probe(self) -> ProbeLogprobs:
        """Log-probabilities of the trained model on the probe."""

    @property
    def folder(self) -> Path:
        """Folder from which a starting server loads the weights."""

    @property
    def nbytes(self) -> int:
        """Size of the tensors in bytes."""


class WeightSource(Protocol):
    """Source of the weights of a policy in training; an adapter is merged."""

    def write(self, folder: Path) -> ProbeLogprobs:
        """Write the current weights to a folder in transformers format, and return the probe."""


@final
class ModelWeights:
    """Weights of a model in this process."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def write(self, folder: Path) -> ProbeLogprobs:
        write_model(folder, self._model, dict(merge_lora(self._model.state_dict(), self._model)))
        return run_probe(self._model)


@dataclass(frozen=True)
class FileWeightSnapshot:
    """`WeightSnapshot` in files, which are deleted when this object is garbage-collected."""

    label: str
    version: int
    folder: Path
    probe: ProbeLogprobs

    @property
    def nbytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))


def write_snapshot(
    source: WeightSource, tokenizer: Any, version: int, parent: Path
) -> FileWeightSnapshot:
    """Write the current weights of a policy to a new folder in `parent`, and return the snapshot.

    Raises UserError if the files cannot be written.
    """
    folder, probe = make_snapshot_folder(source.write, tokenizer, parent)
    snapshot = FileWeightSnapshot(uuid.uuid4().hex, version, folder, probe)
    delete_when_collected(snapshot, folder)
    return snapshot


def make_snapshot_folder(
    write: Callable[[Path], T], tokenizer: Any, parent: Path
) -> tuple[Path, T]:
    """Create a new folder in `parent` with the tokenizer and the files that `write` writes. Returns
    the folder and the result of `write`.

    Raises UserError if the files cannot be written.
    """
    try:
        make_folder(parent)
        folder = Path(tempfile.mkdtemp(prefix="weights-", dir=parent))
        result = write(folder)
        write_tokenizer(folder, tokenizer)
    except OSError as error:
        raise UserError(
            f"the weights for vLLM cannot be written to {parent} ({error.strerror or error}): free"
            " disk space, or set engine.weight_folder to another folder."
        ) from error
    return folder, result


def delete_when_collected(owner: Any, folder: Path) -> None:
    """Delete a folder when `owner` is garbage-collected."""
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)


def merge_lora(state: Mapping[str, Tensor], model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a model's state with its adapter merged (LoRA, arXiv 2106.09685, section
    4.1), under the names of the model without adapter.

    Merged weights are new tensors in float32: the model may continue to be trained, and adding and
    subtracting in place would leave rounding errors in frozen weights.
    """
    for name, tensor in state.items():
        if f"{name.partition('.lora_')[0]}{BASE_LAYER_SUFFIX}.weight" in state:
            continue
        layer = name.removesuffix(f"{BASE_LAYER_SUFFIX}.weight")
        merged = tensor if layer == name else tensor.float() + _compute_delta(state, layer, model)
        yield name.replace(f"{BASE_LAYER_SUFFIX}.", "."), merged


def _compute_delta(state: Mapping[str, Tensor], layer: str, model: Any) -> Tensor:
    """Return the difference, in float32, that the adapter makes to the weight of a layer."""
    module = model.get_submodule(layer)
    is_embedding = f"{layer}.lora_embedding_A.{TRAINED_ADAPTER}" in state
    kind, end = ("lora_embedding_", "") if is_embedding else ("lora_", ".weight")
    up, down = (state[f"{layer}.{kind}{part}.{TRAINED_ADAPTER}{end}"].float() for part in "BA")
    delta = module.scaling[TRAINED_ADAPTER] * (up @ down)
    return delta.T if is_embedding or module.fan_in_fan_out else delta


def make_probe_ids(config: Any) -> list[int]:
    """Return the ids of the probe for a model with this configuration."""
    count = min(PROBE_TOKENS, (get_max_positions(config) or PROBE_TOKENS + 1) - 1)
    return make_spaced_ids(1, count, int(config.vocab_size))


@torch.no_grad()
def run_probe(model: Any) -> ProbeLogprobs:
    """Return the model's log-probabilities on ids distributed over its vocabulary."""
    ids = make_probe_ids(model.config.get_text_config())
    model.eval()  # it may have been trained since
    logits = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0].float()
    all_logprobs = logits[:-1].log_softmax(-1)
    text_logprobs = all_logprobs.gather(1, torch.tensor(ids[1:], device=model.device)[:, None])[
        :, 0
    ]
    next_logprobs = (logits[-1] / PROBE_TEMPERATURE).log_softmax(-1)
    return ProbeLogprobs(ids, text_logprobs.cpu().numpy(), next_logprobs.cpu().numpy())


def choose_exchange_folder(model: Any, fallback: Path) -> Path:
    """Return the fastest exchange folder for weights on one machine: shared memory if more than
    three times the size of the weights is free, else `fallback`."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    if SHARED_MEMORY_FOLDER.is_dir() and shutil.disk_usage(SHARED_MEMORY_FOLDER).free > 3 * size:
        return SHARED_MEMORY_FOLDER
    return fallback
