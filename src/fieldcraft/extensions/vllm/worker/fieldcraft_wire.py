"""Broadcast of tensors from a trainer to all workers of all servers; both ends run this file.

A channel is a separate process group: neither end touches the default group of its process. The
file also runs in vLLM's Python environment, so it imports nothing from fieldcraft.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

CHANNEL_TIMEOUT_SECONDS = 60.0  # timeout of one tensor, and of the other ranks to join
POLL_SECONDS = 2e-4  # seconds between polls of a pending broadcast
CHANNEL_ERRORS = (RuntimeError, TimeoutError)  # a channel is unusable after one of these

TensorMeta = tuple[str, str, Sequence[int]]  # name, type such as bfloat16, shape


class BroadcastChannel:
    """One end of a channel. Rank 0 sends; the other ranks of `world_size` receive.

    All ranks rendezvous at an address of rank 0; port 0 selects a free port. They join when the
    first tensor is sent, and stay connected. Failures raise one of CHANNEL_ERRORS within
    `timeout_seconds`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        rank: int,
        world_size: int,
        device: torch.device,
        timeout_seconds: float = CHANNEL_TIMEOUT_SECONDS,
    ) -> None:
        self._rank, self._world_size, self._device = rank, world_size, device
        self._timeout = timedelta(seconds=timeout_seconds)
        self._host, self.port = host, port
        self._store: TCPStore | None = None
        self._group: Any = None  # a Backend
        if rank == 0:
            self._store = self._open_store()
            self.port = self._store.port

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        """Send tensors one after the other, from any device."""
        with self._use_side_stream():
            for tensor in tensors.values():
                self._broadcast(tensor.to(self._device))

    def receive(self, metas: Sequence[TensorMeta]) -> dict[str, Tensor]:
        """Receive the tensors that rank 0 sends into CPU memory; `metas` are in sending order."""
        tensors = {}
        with self._use_side_stream():
            for name, dtype, shape in metas:
                buffer = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=self._device)
                self._broadcast(buffer)
                tensors[name] = buffer.cpu()
        return tensors

    def close(self) -> None:
        """Leave the channel, even in the middle of a tensor."""
        if self._group is not None:
            self._group.abort()
        self._group = self._store = None

    def _open_store(self) -> TCPStore:
        is_first = self._rank == 0
        return TCPStore(
            self._host, self.port, None, is_first, self._timeout, wait_for_workers=False
        )

    def _join_group(self) -> Any:
        self._store = self._store or self._open_store()
        if self._device.type != "cuda":
            return c10d.ProcessGroupGloo(self._store, self._rank, self._world_size, self._timeout)
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = 2 * self._timeout  # on expiry NCCL's watchdog ends the process
        return c10d.ProcessGroupNCCL(self._store, self._rank, self._world_size, options)

    def _broadcast(self, tensor: Tensor) -> None:
        if self._group is None:
            self._group = self._join_group()
        work = self._group.broadcast(tensor, 0)
        deadline = time.monotonic() + self._timeout.total_seconds()
        while not work.is_completed():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no tensor within {self._timeout.total_seconds():g} s")
            time.sleep(POLL_SECONDS)
        work.wait()

    def _use_side_stream(self) -> AbstractContextManager[object]:
        """Return a context in which transfers run concurrently with other GPU work."""
        if self._device.type != "cuda":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.Stream(self._device))


def make_tensor_metas(tensors: Mapping[str, Tensor]) -> list[TensorMeta]:
    """Return the metadata that receivers need, in the order in which tensors are sent."""
    return [
        (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        for name, tensor in tensors.items()
    ]
