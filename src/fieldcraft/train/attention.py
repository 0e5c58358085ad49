"""Attention in packed batches: run by run, so that there is no mask of all tokens.

A mask of 32,768 tokens would have a billion places. Instead torch's fused kernels, whose memory is
linear in the length, compute all runs at once on CUDA devices, and parts without a mask on CPUs
(`attention_in_parts.py`). Elsewhere each run is cut out, together with what it continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from fieldcraft.engine.attention import unusual_option
from fieldcraft.train.attention_in_parts import attend_in_parts, has_kernel, way
from fieldcraft.train.batch import Run
from fieldcraft.types import UserError

ATTENTION = "fieldcraft_packed"
PIECE = 256  # queries of a layer with a window that share a mask, unless the window is larger


class Held(Protocol):
    """The part of a packed batch that one of several processes holds."""

    @property
    def mine(self) -> Sequence[int]:
        """Places of the runs that it computes, in the order in which it holds them."""
        ...

    def gather(self, parts: Tensor) -> Tensor:
        """Gather what all of them hold: [..., n, D] gives [..., N, D]."""
        ...


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    runs: Sequence[Run] | None = None,
    part: Held | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute the attention as transformers calls it: `query` [1, Hq, N, D] gives [1, N, Hq, D].

    `runs` are those of a packed batch, of which this process may hold only a `part`. Without them
    the model is not being trained, and attends as usual. With a `sliding_window` each token sees so
    many, itself included.

    Raises UserError for an architecture whose attention is more than softmax(q k) v, or whose
    layers do not pass on the runs of a packed batch.
    """
    is_packed = attention_mask is not None and attention_mask.numel() == 1
    if runs is None:
        if is_packed and query.shape[2] > 1:
            raise _untrainable(module, "its layers do not pass on which text a token belongs to")
        usual: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return usual
    if why := unusual_option(module, {**options, "sliding_window": sliding_window}):
        raise _untrainable(module, why)
    if attention_mask is not None and not is_packed:
        raise _untrainable(module, "it adds a mask of its own")
    if part is not None and key.shape == value.shape:
        key, value = part.gather(torch.stack([key, value]))
    elif part is not None:  # in latent attention keys are wider than values
        key, value = part.gather(key), part.gather(value)
    runs, held = tuple(runs), tuple(range(len(runs)) if part is None else part.mine)
    all_seen = sliding_window is None or sliding_window >= _longest(runs)
    if all_seen and not dropout and has_kernel(query, key, value):
        return attend_in_parts(query, key, value, runs, held, scaling), None
    share = query.shape[1] // key.shape[1]
    if share > 1:
        key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    if has_flash(query) and value.shape[-1] == query.shape[-1] and not dropout:
        mixed = _all_at_once(query, key, value, runs, held, scaling, sliding_window)
    else:
        mixed = _one_by_one(query, key, value, runs, held, scaling, dropout, sliding_window)
    return mixed[None], None


def _untrainable(module: torch.nn.Module, why: str) -> UserError:
    return UserError(
        f"{type(module).__name__} cannot be trained, because {why}: choose a model with plain"
        " attention."
    )


def has_flash(query: Tensor) -> bool:
    """Return whether torch's kernel for texts of any lengths can compute this: on CUDA devices from
    Ampere on, in 16 bits."""
    if not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return False
    size = query.shape[-1]
    ampere = torch.cuda.get_device_capability(query.device) >= (8, 0)
    return ampere and size % 8 == 0 and size <= 256


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout that the kernel is told of the runs held here: `keys` are the places of what each
    run sees, run after run. Queries and keys of a run lie between two of `query_ends` and
    `key_ends`."""

    keys: Tensor
    query_ends: Tensor
    key_ends: Tensor
    longest_query: int
    longest_keys: int


@lru_cache(maxsize=2)  # all layers of a model ask for the same
def _layout(runs: tuple[Run, ...], held: tuple[int, ...], device: torch.device) -> Layout:
    ways = [way(place, runs) for place in held]
    keys = [torch.arange(runs[p].start, runs[p].end) for places in ways for p in places]
    asking = [runs[place].size for place in held]
    seen = [sum(runs[p].size for p in places) for places in ways]
    query_ends, key_ends = (
        torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device)
        for sizes in (asking, seen)
    )
    return Layout(torch.cat(keys).to(device), query_ends, key_ends, max(asking), max(seen))


@lru_cache(maxsize=2)
def _longest(runs: tuple[Run, ...]) -> int:
    """Return how many tokens the last one of a run sees at most."""
    return max(sum(runs[p].size for p in way(place, runs)) for place in range(len(runs)))


def _all_at_once(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    runs: tuple[Run, ...],
    held: tuple[int, ...],
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Compute the attention [n, Hq, D] by one kernel. Its last query sees all keys of a run, the
    one before it all but the last, and so on: exactly what a run sees that continues others."""
    layout = _layout(runs, held, query.device)
    keys, values = (whole[0].index_select(1, layout.keys) for whole in (key, value))
    mixed = varlen_attn(
        query[0].transpose(0, 1),
        keys.transpose(0, 1),
        values.transpose(0, 1),
        layout.query_ends,
        layout.key_ends,
        layout.longest_query,
        layout.longest_keys,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
    )
    assert isinstance(mixed, Tensor)  # it also returns log-sums if it is asked to
    return mixed


def _one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    runs: tuple[Run, ...],
    held: tuple[int, ...],
    scaling: float | None,
    dropout: float,
    window: int | None,
) -> Tensor:
    """Compute the attention [n, Hq, D] by a kernel for each run."""
    sizes = [run.size for run in runs]
    # Cut once: the gradient of a slice has the size of what it is cut from.
    keys, values = key.split(sizes, 2), value.split(sizes, 2)
    fused = partial(scaled_dot_product_attention, dropout_p=dropout, scale=scaling)
    mixed = [
        _of_run(fused, asking, _seen(keys, place, runs), _seen(values, place, runs), window)
        for place, asking in zip(held, query.split([sizes[p] for p in held], 2), strict=True)
    ]
    return torch.cat(mixed, 2)[0].transpose(0, 1).contiguous()


def _seen(parts: Sequence[Tensor], place: int, runs: tuple[Run, ...]) -> Tensor:
    """Return those keys or values of all runs that one run sees."""
    places = way(place, runs)
    return parts[place] if len(places) == 1 else torch.cat([parts[p] for p in places], 2)


def _of_run(
    fused: Callable[..., Tensor], asking: Tensor, keys: Tensor, values: Tensor, window: int | None
) -> Tensor:
    """Compute the attention of the queries of one run, the last ones of all that it sees."""
    past, whole = keys.shape[2] - asking.shape[2], keys.shape[2]
    if window is None or window >= whole:
        if not past:  # then the kernel needs no mask
            return fused(asking, keys, values, is_causal=True)
        return fused(asking, keys, values, attn_mask=_band(asking, past, whole, whole))
    # Piece by piece, so that masks and scores are not those of the whole run.
    mixed = []
    for begin, piece in enumerate(asking.split(step := max(window, PIECE), 2)):
        place = past + begin * step
        first, end = max(0, place - window + 1), place + piece.shape[2]
        mask = _band(piece, place - first, end - first, window)
        mixed.append(fused(piece, keys[:, :, first:end], values[:, :, first:end], attn_mask=mask))
    return torch.cat(mixed, 2)


def _band(asking: Tensor, place: int, whole: int, window: int) -> Tensor:
    """Return the mask [n, whole] of bool of what n tokens see, of which the first stands at a
    place. Each sees the last `window` up to itself."""
    seen = torch.ones(asking.shape[2], whole, dtype=torch.bool, device=asking.device)
    return seen.tril(place).triu(place - window + 1)


def attend_by_runs(model: Any) -> None:
    """Let a transformers model attend by `attend` from now on; without `runs` it attends as it did
    before."""
    model.config._attn_implementation = ATTENTION


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
# With a mask of four dimensions transformers makes none of its own; `attend` does not look at it.
NO_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
