"""LoRA (arXiv 2106.09685): low-rank adapters on a frozen model, and their merging, with PEFT.

Needs the extra `fieldcraft[lora]`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fieldcraft.config.names import get_first_line
from fieldcraft.config.sections import Dtype, LoraConfig
from fieldcraft.engine.weights import BASE_LAYER_SUFFIX, TRAINED_ADAPTER, merge_lora
from fieldcraft.hub.model_conversion import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE
from fieldcraft.records.files import copy_file_mode
from fieldcraft.records.reading import advise_repair, raise_read_errors, require_readable
from fieldcraft.train.model import load_model, load_tokenizer
from fieldcraft.train.parity import probe_model
from fieldcraft.train.saving import save_model
from fieldcraft.types import UserError

OTHER_ADAPTER_ADVICE = "specify the folder of another one"  # for an adapter outside a run
CPU = torch.device("cpu")
INITIAL_ADAPTER = "start"  # name of a copy of the trained adapter's initial state


@final
class LoraAdapter:
    """Adapter on a model, which is changed in place: its forward pass includes the adapter. The
    model's weights are frozen and keep their dtype; the adapter's weights are float32.

    A new adapter initially adds 0. Its random weights are determined by the seed.

    Args:
        model: transformers causal LM.
        settings: shape of the adapter.
        seed: seed of a new adapter.
        folder: folder of a saved adapter to continue from; None: a new adapter.

    Raises:
        UserError: PEFT is not installed, the model has no such layers, or one of them shares its
            weight with another layer.
    """

    def __init__(
        self, model: Any, settings: LoraConfig, seed: int, folder: Path | None = None
    ) -> None:
        self.peft_library = import_peft()
        width = model.config.get_text_config().hidden_size
        if settings.rank > width:
            raise UserError(
                f"lora.rank={settings.rank} exceeds the model's hidden size of {width}: set a"
                " smaller rank, such as 16, or train all weights without lora."
            )
        self.config = self.peft_library.LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            target_modules=list(settings.targets) or "all-linear",
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            torch.manual_seed(seed)
            # PEFT still uses this deprecated attribute
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is", FutureWarning)
            # raised below as a UserError
            warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
            try:
                self.peft_model = self.peft_library.get_peft_model(model, self.config)
            except ValueError as error:
                raise UserError(
                    f"lora.targets={list(settings.targets)} names no linear layer of the model: use"
                    " names such as q_proj, or none for all of them."
                ) from error
        _require_untied(model)
        if folder is not None:
            self.load(folder)

    def save(self, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write the adapter in PEFT format. `weights`, keyed by the model's names, replace the
        adapter's own."""
        state = weights and {f"base_model.model.{name}": w for name, w in weights.items()}
        self.peft_model.save_pretrained(
            folder,
            state_dict=state,
            selected_adapters=[TRAINED_ADAPTER],
            save_embedding_layers=False,
        )
        copy_file_mode(folder, folder / "adapter_config.json")

    def load(self, folder: Path) -> None:
        """Load the weights of a saved adapter.

        Raises UserError if its tensors do not match this adapter's, or are not finite.
        """
        require_readable(folder)
        file = folder / "adapter_model.safetensors"
        try:
            weights = load_file(file)
            self._set_weights(TRAINED_ADAPTER, weights)
        except (OSError, RuntimeError, ValueError, SafetensorError) as error:
            raise UserError(
                f"{file} is damaged, or belongs to another adapter: "
                f"{advise_repair(folder, OTHER_ADAPTER_ADVICE)}."
            ) from error
        expected = self._get_weights().keys()
        broken = [name for name in weights if not weights[name].isfinite().all()]
        if wrong := sorted(expected ^ weights.keys()) or broken:
            raise UserError(
                f"{file} does not match the adapter of the recipe: its tensor"
                f" {wrong[0]} is missing, unexpected or not finite: "
                f"{advise_repair(folder, OTHER_ADAPTER_ADVICE)}."
            )

    def merge(self) -> Any:
        """Merge the adapter into the weights of the model, in float32, which represents both, and
        return the model; the adapter is unusable afterwards."""
        model = self.peft_model.get_base_model().float()
        state: dict[str, torch.Tensor] = model.state_dict()
        weights = {name.replace(f"{BASE_LAYER_SUFFIX}.", "."): w for name, w in state.items()}
        for name, merged in merge_lora(state, model):
            weights[name].copy_(merged)
        return self.peft_model.unload()

    def save_initial(self) -> None:
        """Copy the current adapter for `use_initial`."""
        with torch.random.fork_rng(devices=[]):
            self.peft_model.add_adapter(INITIAL_ADAPTER, self.config)
        self._set_weights(INITIAL_ADAPTER, self._get_weights())

    @contextmanager
    def use_initial(self) -> Iterator[None]:
        """Use the adapter saved by `save_initial` inside the block."""
        self.peft_model.set_adapter(INITIAL_ADAPTER, inference_mode=True)
        try:
            yield
        finally:
            self.peft_model.set_adapter(TRAINED_ADAPTER)

    def _get_weights(self) -> dict[str, torch.Tensor]:
        weights: dict[str, torch.Tensor] = self.peft_library.get_peft_model_state_dict(
            self.peft_model, adapter_name=TRAINED_ADAPTER, save_embedding_layers=False
        )
        return weights

    def _set_weights(self, name: str, weights: dict[str, torch.Tensor]) -> None:
        self.peft_library.set_peft_model_state_dict(self.peft_model, weights, adapter_name=name)


def load_policy(
    folder: Path,
    dtype: Dtype,
    lora: LoraConfig | None,
    seed: int = 0,
    adapter: Path | None = None,
    device: torch.device = CPU,
) -> tuple[Any, LoraAdapter | None]:
    """Load the initial model of a policy and, with `lora`, an adapter on it: a new one, or the one
    in a folder. Trained weights are in float32, the base model of an adapter in `dtype`. Raises
    UserError if a folder cannot be read."""
    if lora is None:
        return load_model(folder, device), None
    model = load_model(folder, device, dtype)
    return model, LoraAdapter(model, lora, seed, adapter)


def _require_untied(model: Any) -> None:
    """Raise UserError if a layer with an adapter shares its weight with another layer, as tied
    embeddings do. Merging would change both, and a checkpoint stores such a weight once."""
    owners: dict[int, dict[int, str]] = {}  # names of the layers that have each weight
    for name, layer in model.named_modules():
        for weight in layer.parameters(recurse=False):
            owners.setdefault(id(weight), {})[id(layer)] = name
    for sharing in owners.values():
        names = [name.removesuffix(BASE_LAYER_SUFFIX) for name in sharing.values()]
        adapted = [
            name.removesuffix(BASE_LAYER_SUFFIX)
            for name in sharing.values()
            if name.endswith(BASE_LAYER_SUFFIX)
        ]
        if adapted and len(names) > 1:
            other = next(name for name in names if name != adapted[0])
            raise UserError(
                f"lora.targets={adapted[0].rpartition('.')[2]} names a layer whose weight is also"
                f" that of {other} (tied weights), so an adapter on it cannot be merged: remove it"
                " from lora.targets."
            )


def write_merged_model(folder: Path, adapter: Path, base: Path) -> None:
    """Write the model `base` with an adapter merged into its weights, in float32, which represents
    every stored weight exactly.

    Raises UserError if the adapter cannot be merged or does not fit the base.
    """
    model = load_model(base, CPU)
    has_tokenizer = any(
        (adapter / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")
    )
    peft_model = _load_adapter(model, adapter, base)
    probe = probe_model(peft_model)  # detects a merge that changes the policy
    tokenizer = load_tokenizer(adapter if has_tokenizer else base)
    save_model(folder, peft_model.merge_and_unload(), tokenizer, probe=probe)


def _load_adapter(model: Any, adapter: Path, base: Path) -> Any:
    peft = import_peft()
    misfit = f"{adapter / ADAPTER_WEIGHTS_FILE} does not fit the model in {base}"
    with (
        warnings.catch_warnings(),
        raise_read_errors(adapter / ADAPTER_CONFIG_FILE, "copy the adapter again"),
    ):
        warnings.simplefilter("ignore")  # about errors that are raised below
        config = peft.PeftConfig.from_pretrained(str(adapter))
    if config.task_type not in (None, "CAUSAL_LM"):
        raise UserError(
            f"{adapter} is an adapter for {config.task_type} and not for a model that generates"
            " text: choose another one."
        )
    config.inference_mode = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peft_model = peft.get_peft_model(model, config)
            weights = load_file(adapter / ADAPTER_WEIGHTS_FILE)
            peft.set_peft_model_state_dict(peft_model, weights)
            expected = peft.get_peft_model_state_dict(peft_model, save_embedding_layers=False)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        reason = get_first_line(error)
        raise UserError(
            f"{misfit} ({reason}): set base_model_name_or_path in {adapter / ADAPTER_CONFIG_FILE}"
            " to its own base."
        ) from error
    if wrong := sorted(expected.keys() ^ weights.keys()):
        raise UserError(
            f"{misfit}, because the tensor {wrong[0]} is missing or unexpected: set"
            f" base_model_name_or_path in {adapter / ADAPTER_CONFIG_FILE} to its own base."
        )
    if not hasattr(peft_model, "merge_and_unload"):
        raise UserError(
            f"{adapter} is an adapter of type {config.peft_type.value}, which cannot be merged"
            " into weights: specify a LoRA adapter."
        )
    return peft_model.eval()


def import_peft() -> ModuleType:
    """Return the PEFT library. Raises UserError if it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise UserError("LoRA needs the package peft: pip install 'fieldcraft[lora]'.") from error
    return peft
