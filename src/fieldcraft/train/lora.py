"""LoRA (arXiv 2106.09685): adapters of low rank on a model that stays as it is, by PEFT.

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

from fieldcraft.config.sections import LoraConfig
from fieldcraft.records.files import copy_file_mode
from fieldcraft.records.remedies import advise_repair, require_readable
from fieldcraft.types import UserError

OTHER_ADAPTER_ADVICE = "give the folder of another one"  # what to do about an adapter of no run
BASE_LAYER_SUFFIX = ".base_layer"  # ends PEFT's name of a layer that has an adapter
TRAINED_ADAPTER, INITIAL_ADAPTER = (
    "default",
    "start",
)  # names of the adapter and of a copy of it as it began


@final
class LoraAdapter:
    """An adapter on a model, which is changed in place: from now on its forward adds the adapter's
    part. Its own weights are frozen, in whatever type they have; the adapter's are float32.

    A new adapter adds nothing yet. What is random in it follows from the seed.

    Args:
        model: a transformers causal LM.
        settings: its shape.
        seed: of a new adapter.
        folder: where one was saved that this one continues; None: it is new.

    Raises:
        UserError: PEFT is not installed, the model has no such layers, or one of them shares its
            weight with another.
    """

    def __init__(
        self, model: Any, settings: LoraConfig, seed: int, folder: Path | None = None
    ) -> None:
        self.peft_library = import_peft()
        width = model.config.get_text_config().hidden_size
        if settings.rank > width:
            raise UserError(
                f"lora.rank={settings.rank} is beyond the model, whose layers are {width} wide:"
                " give a smaller one, such as 16, or train all weights without lora."
            )
        self.config = self.peft_library.LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            target_modules=list(settings.targets) or "all-linear",
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            torch.manual_seed(seed)
            # by which PEFT still asks transformers
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is", FutureWarning)
            # refused below, in a sentence
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
        """Write the adapter as PEFT loads it. `weights` are in the place of its own, by the names
        that the model has for them."""
        state = weights and {f"base_model.model.{name}": w for name, w in weights.items()}
        self.peft_model.save_pretrained(
            folder,
            state_dict=state,
            selected_adapters=[TRAINED_ADAPTER],
            save_embedding_layers=False,
        )
        copy_file_mode(folder, folder / "adapter_config.json")

    def load(self, folder: Path) -> None:
        """Take over the weights of an adapter that was saved.

        Raises UserError if they are not just those that this one has, or not finite.
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
        """Merge the adapter into the weights of the model, in their type, and return it; the
        adapter is of no use afterwards."""
        return self.peft_model.merge_and_unload()

    def save_initial(self) -> None:
        """Copy the adapter as it is now, for `use_initial`."""
        with torch.random.fork_rng(devices=[]):
            self.peft_model.add_adapter(INITIAL_ADAPTER, self.config)
        self._set_weights(INITIAL_ADAPTER, self._get_weights())

    @contextmanager
    def use_initial(self) -> Iterator[None]:
        """Let the model be, inside the block, what it was when `save_initial` was called."""
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


def _require_untied(model: Any) -> None:
    """Raise UserError where a layer with an adapter has a weight that another layer has too, as
    tied embeddings do. Merging would change both, and each checkpoint holds such a weight once."""
    owners: dict[int, dict[int, str]] = {}  # of each weight: the layers that have it, by name
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


def import_peft() -> ModuleType:
    """Return the library. Raises UserError where it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise UserError("LoRA needs the package peft: pip install 'fieldcraft[lora]'.") from error
    return peft
