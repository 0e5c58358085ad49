"""Weights on their way to engines: snapshots, merged adapters, and a probe that verifies them."""

from __future__ import annotations

import copy
import math
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldcraft.engine.model_files import write_model, write_tokenizer
from fieldcraft.engine.parity import gather_logprobs, make_spaced_ids
from fieldcraft.engine.sizes import get_max_positions
from fieldcraft.records.files import make_folder
from fieldcraft.types import UserError

FloatArray = NDArray[np.float32]
TensorMeta = tuple[str, str, Sequence[int]]  # name, type such as bfloat16, shape

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
        text = self.mean_abs_difference(logprobs)
        token = (
            0.0 if self.next_logprobs is None else abs(logprob - float(self.next_logprobs[sampled]))
        )
        return math.nan if math.isnan(text + token) else max(text, token)

    def mean_abs_difference(self, logprobs: Sequence[float] | FloatArray) -> float:
        """Return the mean absolute difference from another model's log-probabilities of the same
        ids, in nats; NaN if either contains NaN."""
        return float(np.abs(np.asarray(logprobs, np.float32) - self.logprobs).mean())


class WeightFolder:
    """Folder with the weights and the tokenizer of a policy, written by `write` on first use, and
    deleted when this object is garbage-collected."""

    def __init__(self, parent: Path, tokenizer: Any, write: Callable[[Path], object]) -> None:
        self._parent = parent
        self._tokenizer = tokenizer
        self._write = write

    @cached_property
    def path(self) -> Path:
        """Path of the folder. Raises UserError if the files cannot be written."""
        try:
            make_folder(self._parent)
            folder = Path(tempfile.mkdtemp(prefix="weights-", dir=self._parent))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._write(folder)
            write_tokenizer(folder, self._tokenizer)
        except OSError as error:
            raise UserError(
                f"the weights for vLLM cannot be written to {self._parent}"
                f" ({error.strerror or error}): free disk space, or set engine.weight_folder to"
                " another folder."
            ) from error
        return folder

    @property
    def nbytes(self) -> int:
        """Size of the weight files in bytes."""
        return sum(file.stat().st_size for file in self.path.glob("*.safetensors"))


@dataclass(frozen=True, eq=False)
class WeightSnapshot:
    """Published weights of a policy, with an adapter merged. Training does not change them.

    Args:
        version: version that is recorded for the policy's tokens.
        probe: log-probabilities of the trained model on the probe.
        nbytes: size of the weights in bytes.
        files: folder from which servers can load the weights.
        metas: tensors that trainers can send to servers, in the order of sending.
        handle: trainers that have the tensors `metas`; for engines of a cluster, Ray's handle of
            all tensors.
        label: label that is unique across policies and runs.
    """

    version: int
    probe: ProbeLogprobs
    nbytes: int
    files: WeightFolder | None = None
    metas: Sequence[TensorMeta] = ()
    handle: Any = None
    label: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def folder(self) -> Path:
        """Folder from which servers load the weights."""
        assert self.files is not None, "engines have no files"
        return self.files.path


FolderFactory = Callable[[Callable[[Path], object]], WeightFolder]  # from the function `write`


class WeightSource(Protocol):
    """Source of the weights of a policy in training."""

    def take_snapshot(
        self, version: int, dtype: torch.dtype, make_folder: FolderFactory
    ) -> WeightSnapshot:
        """Return a snapshot of the current weights, for engines that compute in `dtype`.
        `make_folder` makes its folder."""


@final
class ModelWeights:
    """Weights of a model in this process, which servers load from files."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def take_snapshot(
        self, version: int, dtype: torch.dtype, make_folder: FolderFactory
    ) -> WeightSnapshot:
        files = make_folder(self._write)
        return WeightSnapshot(version, run_probe(self._model), files.nbytes, files)

    def _write(self, folder: Path) -> None:
        write_model(folder, self._model, dict(merge_lora(self._model.state_dict(), self._model)))


def snapshot_model(model: Any) -> Any:
    """Copy a model, to sample from it while the model itself is trained in the same process. Frozen
    parameters, such as the base weights under an adapter, are shared."""
    frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
    return copy.deepcopy(model, frozen).requires_grad_(requires_grad=False)


@torch.no_grad()
def sync_snapshot(snapshot: Any, model: Any) -> None:
    """Copy the current trainable weights of a model into its copy."""
    for target, source in zip(snapshot.parameters(), model.parameters(), strict=True):
        if source.requires_grad:
            target.copy_(source)


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
    text_logprobs = gather_logprobs(logits[:-1], ids[1:])
    next_logprobs = (logits[-1] / PROBE_TEMPERATURE).log_softmax(-1)
    return ProbeLogprobs(ids, text_logprobs.cpu().numpy(), next_logprobs.cpu().numpy())


def choose_exchange_folder(model: Any, fallback: Path) -> Path:
    """Return the fastest exchange folder for weights on one machine: shared memory if more than
    three times the size of the weights is free, else `fallback`."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    if SHARED_MEMORY_FOLDER.is_dir() and shutil.disk_usage(SHARED_MEMORY_FOLDER).free > 3 * size:
        return SHARED_MEMORY_FOLDER
    return fallback
