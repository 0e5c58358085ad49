"""Master weights of mixed-precision training, and the AdamW that updates them.

A model may compute in bfloat16. The next number above 0.1 is then 0.1005, and an update of 1e-6
would be lost. So the optimizer updates float32 master weights, which are rounded for the model
(mixed precision, arXiv 1710.03740, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fieldcraft.config.sections import Optim
from fieldcraft.types import UserError


class MasterWeights:
    """Trained weights of a model in its compute dtype, and their master weights.

    A weight that has the compute dtype is its own master. Other weights are rounded in place, and
    the original values become the master. Gradients of a rounded weight are accumulated in float32,
    at its master.

    Args:
        parameters: parameters of the model, in float32 if `dtype` differs from it; frozen ones are
            not changed.
        dtype: compute dtype of the model; None: the dtype of the parameters.
        unrounded: additional parameters, which are never rounded.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        dtype: torch.dtype | None = None,
        unrounded: Iterable[nn.Parameter] = (),
    ) -> None:
        self._masters = {weight: weight for weight in unrounded}
        for weight in parameters:
            if weight.requires_grad:
                is_rounded = dtype is not None and weight.dtype != dtype
                self._masters[weight] = _round_in_place(weight, dtype) if is_rounded else weight

    @property
    def masters(self) -> list[nn.Parameter]:
        return list(self._masters.values())

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Copy the master weights to the model."""
        for weight, master in self._masters.items():
            if weight is not master:
                weight.copy_(master)

    def make_state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the state of the model that contains the weights, with the masters in their
        place."""
        state: Mapping[str, Any] = model.state_dict(keep_vars=True)
        return {name: self._masters.get(value, value).detach() for name, value in state.items()}

    @torch.no_grad()
    def load(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Load the state that `make_state_dict` returned."""
        for name, value in model.state_dict(keep_vars=True).items():
            self._masters.get(value, value).copy_(state[name])
        self.copy_to_model()


def _round_in_place(weight: nn.Parameter, dtype: torch.dtype | None) -> nn.Parameter:
    """Round a weight in place, and return its master."""
    master = nn.Parameter(weight.data)
    weight.data = weight.data.to(dtype)
    weight.register_post_accumulate_grad_hook(partial(_accumulate_grad, master))
    return master


def _accumulate_grad(master: nn.Parameter, weight: Tensor) -> None:
    assert weight.grad is not None
    gradient, weight.grad = weight.grad.float(), None
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)


def make_adamw(parameters: Iterable[nn.Parameter], optim: Optim) -> torch.optim.Optimizer:
    """Make an AdamW over float32 parameters; vectors have no weight decay. Raises UserError as
    `choose_adamw` does."""
    trained = list(parameters)
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": optim.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    factory = choose_adamw(optim, trained[0].device)
    return factory(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2))


def choose_adamw(optim: Optim, device: torch.device) -> Callable[..., torch.optim.Optimizer]:
    """Return a factory of AdamW with the configured storage of moments. Raises UserError if a
    required package or device is missing."""
    if optim.optimizer_state == "float32":
        return partial(torch.optim.AdamW, fused=True)
    package = _import_bitsandbytes()
    if optim.optimizer_state == "cpu" and device.type != "cuda":
        raise UserError(
            "optimizer_state: cpu offloads the optimizer state from a GPU, and no GPU is in use:"
            " remove it."
        )
    factory: Callable[..., torch.optim.Optimizer] = {
        "8bit": package.optim.AdamW8bit,
        "cpu": package.optim.PagedAdamW,
    }[optim.optimizer_state]
    return factory


def _import_bitsandbytes() -> ModuleType:
    try:
        import bitsandbytes
    except ImportError as error:
        raise UserError(
            "optimizer_state: 8bit and cpu need the package bitsandbytes: pip install"
            " 'fieldcraft[optim]'."
        ) from error
    return bitsandbytes
