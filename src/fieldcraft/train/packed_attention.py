"""Attention in packed batches, computed per run, without a mask over all tokens.

A mask of 32,768 tokens would have a billion entries. Instead torch's fused kernels, whose memory is
linear in the length, compute all runs at once on CUDA devices, and blocks without a mask on CPUs
(`blockwise_attention.py`). Otherwise each run is computed separately, with the runs that it
continues.
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

from fieldcraft.engine.attention import find_unsupported_option
from fieldcraft.train.batch import TokenRun
from fieldcraft.train.blockwise_attention import (
    blockwise_attention_forward,
    supports_cpu_kernel,
    trace_ancestors,
)
from fieldcraft.types import UserError

ATTENTION_NAME = "fieldcraft_packed"
WINDOW_CHUNK_QUERIES = (
    256  # queries that share a mask in a sliding-window layer, unless the window is larger
)


class SequenceShard(Protocol):
    """Shard of a packed batch in one of several processes."""

    @property
    def local_runs(self) -> Sequence[int]:
        """Indices of the runs that the process computes, in the order of its tokens."""
        ...

    def all_gather(self, parts: Tensor) -> Tensor:
        """Gather the tensors of all processes: [..., n, D] gives [..., N, D]."""
        ...


def packed_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    runs: Sequence[TokenRun] | None = None,
    context_shard: SequenceShard | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute the attention with the interface of transformers: `query` [1, Hq, N, D] gives [1, N,
    Hq, D].

    `runs` are the runs of a packed batch, of which this process may hold only a `context_shard`.
    Without runs the model is not in training, and attention is the default one. With a
    `sliding_window` each token sees that number of tokens, including itself.

    Raises UserError if the architecture's attention is more than softmax(q k) v, or if its layers
    do not pass the runs of a packed batch to the attention function.
    """
    is_packed = attention_mask is not None and attention_mask.numel() == 1
    if runs is None:
        if is_packed and query.shape[2] > 1:
            raise _untrainable_error(
                module, "its layers do not pass the sequence boundaries to the attention function"
            )
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return result
    if reason := find_unsupported_option(module, {**options, "sliding_window": sliding_window}):
        raise _untrainable_error(module, reason)
    if attention_mask is not None and not is_packed:
        raise _untrainable_error(module, "it adds its own attention mask")
    if context_shard is not None and key.shape == value.shape:
        key, value = context_shard.all_gather(torch.stack([key, value]))
    elif context_shard is not None:  # in latent attention keys are wider than values
        key, value = context_shard.all_gather(key), context_shard.all_gather(value)
    runs, local_runs = (
        tuple(runs),
        tuple(range(len(runs)) if context_shard is None else context_shard.local_runs),
    )
    sees_all = sliding_window is None or sliding_window >= _max_context_tokens(runs)
    if sees_all and not dropout and supports_cpu_kernel(query, key, value):
        return blockwise_attention_forward(query, key, value, runs, local_runs, scaling), None
    heads_per_kv_head = query.shape[1] // key.shape[1]
    if heads_per_kv_head > 1:
        key, value = (
            key.repeat_interleave(heads_per_kv_head, 1),
            value.repeat_interleave(heads_per_kv_head, 1),
        )
    if supports_varlen_kernel(query) and value.shape[-1] == query.shape[-1] and not dropout:
        output = _attend_varlen(query, key, value, runs, local_runs, scaling, sliding_window)
    else:
        output = _attend_per_run(
            query, key, value, runs, local_runs, scaling, dropout, sliding_window
        )
    return output[None], None


def _untrainable_error(module: torch.nn.Module, reason: str) -> UserError:
    return UserError(
        f"{type(module).__name__} cannot be trained, because {reason}: choose a model with plain"
        " attention."
    )


def supports_varlen_kernel(query: Tensor) -> bool:
    """Return whether torch's variable-length kernel supports a query: on CUDA devices from Ampere
    on, in 16 bits."""
    if not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return False
    head_dim = query.shape[-1]
    ampere = torch.cuda.get_device_capability(query.device) >= (8, 0)
    return ampere and head_dim % 8 == 0 and head_dim <= 256


@dataclass(frozen=True, slots=True)
class VarlenLayout:
    """Layout of the local runs for the variable-length kernel. `key_positions` are the positions of
    the keys that each run sees, run after run. `cu_seqlens_q` and `cu_seqlens_k` are the boundaries
    of the queries and keys of the runs."""

    key_positions: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int


@lru_cache(maxsize=2)  # shared by all layers of a model
def _make_varlen_layout(
    runs: tuple[TokenRun, ...], local_runs: tuple[int, ...], device: torch.device
) -> VarlenLayout:
    lineages = [trace_ancestors(place, runs) for place in local_runs]
    keys = [torch.arange(runs[p].start, runs[p].end) for places in lineages for p in places]
    query_sizes = [runs[place].size for place in local_runs]
    key_sizes = [sum(runs[p].size for p in places) for places in lineages]
    cu_seqlens_q, cu_seqlens_k = (
        torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device)
        for sizes in (query_sizes, key_sizes)
    )
    return VarlenLayout(
        torch.cat(keys).to(device), cu_seqlens_q, cu_seqlens_k, max(query_sizes), max(key_sizes)
    )


@lru_cache(maxsize=2)
def _max_context_tokens(runs: tuple[TokenRun, ...]) -> int:
    """Return the maximum number of tokens that the last token of a run sees."""
    return max(
        sum(runs[p].size for p in trace_ancestors(place, runs)) for place in range(len(runs))
    )


def _attend_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    runs: tuple[TokenRun, ...],
    local_runs: tuple[int, ...],
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Compute the attention [n, Hq, D] with one kernel call. The last query of a run sees all its
    keys, the previous one all but the last, and so on, which is the causal mask of a run that
    continues others."""
    layout = _make_varlen_layout(runs, local_runs, query.device)
    keys, values = (full[0].index_select(1, layout.key_positions) for full in (key, value))
    output = varlen_attn(
        query[0].transpose(0, 1),
        keys.transpose(0, 1),
        values.transpose(0, 1),
        layout.cu_seqlens_q,
        layout.cu_seqlens_k,
        layout.max_seqlen_q,
        layout.max_seqlen_k,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
    )
    assert isinstance(output, Tensor)  # it can also return log-sums, which are not requested
    return output


def _attend_per_run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    runs: tuple[TokenRun, ...],
    local_runs: tuple[int, ...],
    scaling: float | None,
    dropout: float,
    window: int | None,
) -> Tensor:
    """Compute the attention [n, Hq, D] with one kernel call per run."""
    sizes = [run.size for run in runs]
    # Split once: the gradient of a slice has the size of the full tensor.
    keys, values = key.split(sizes, 2), value.split(sizes, 2)
    kernel = partial(scaled_dot_product_attention, dropout_p=dropout, scale=scaling)
    outputs = [
        attend_run(
            kernel,
            queries,
            _visible_keys(keys, place, runs),
            _visible_keys(values, place, runs),
            window,
        )
        for place, queries in zip(
            local_runs, query.split([sizes[p] for p in local_runs], 2), strict=True
        )
    ]
    return torch.cat(outputs, 2)[0].transpose(0, 1).contiguous()


def _visible_keys(chunks: Sequence[Tensor], place: int, runs: tuple[TokenRun, ...]) -> Tensor:
    """Return the keys or values that one run sees, from those of all runs."""
    places = trace_ancestors(place, runs)
    return chunks[place] if len(places) == 1 else torch.cat([chunks[p] for p in places], 2)


def attend_run(
    kernel: Callable[..., Tensor], queries: Tensor, keys: Tensor, values: Tensor, window: int | None
) -> Tensor:
    """Compute the attention of the queries of one run, whose keys are the last of `keys`."""
    num_past, num_keys = keys.shape[2] - queries.shape[2], keys.shape[2]
    if window is None or window >= num_keys:
        if not num_past:  # the kernel does not need a mask
            return kernel(queries, keys, values, is_causal=True)
        return kernel(
            queries, keys, values, attn_mask=_make_band_mask(queries, num_past, num_keys, num_keys)
        )
    # In chunks, which limit the size of masks and scores.
    outputs = []
    for chunk_index, chunk in enumerate(
        queries.split(step := max(window, WINDOW_CHUNK_QUERIES), 2)
    ):
        position = num_past + chunk_index * step
        first, end = max(0, position - window + 1), position + chunk.shape[2]
        mask = _make_band_mask(chunk, position - first, end - first, window)
        outputs.append(
            kernel(chunk, keys[:, :, first:end], values[:, :, first:end], attn_mask=mask)
        )
    return torch.cat(outputs, 2)


def _make_band_mask(queries: Tensor, position: int, num_keys: int, window: int) -> Tensor:
    """Return the bool mask [n, num_keys] of n queries, the first of which is at `position`. Each
    sees the last `window` keys up to itself."""
    mask = torch.ones(queries.shape[2], num_keys, dtype=torch.bool, device=queries.device)
    return mask.tril(position).triu(position - window + 1)


def enable_packed_attention(model: Any) -> None:
    """Set `packed_attention_forward` as the attention of a transformers model; without `runs` it
    uses the default attention."""
    model.config._attn_implementation = ATTENTION_NAME


AttentionInterface.register(ATTENTION_NAME, packed_attention_forward)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
# Given a four-dimensional mask, transformers does not create one; `packed_attention_forward`
# ignores it.
NO_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
