"""Tensors from a trainer to all workers of all servers, by broadcast. Both ends run this file.

A wire is a group of processes of its own: neither end touches the default group of its process. It
runs in vLLM's own Python as well, so it imports nothing of fieldcraft.
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

SILENCE = 60.0  # seconds that one tensor may take, and the others to join
PACE = 2e-4  # seconds between two looks at a tensor that travels
FAILURES = (RuntimeError, TimeoutError)  # of a wire; it is of no use afterwards

Form = tuple[str, str, Sequence[int]]  # name, type such as bfloat16, shape


class Wire:
    """One end of a wire. Number 0 sends; the others of the `size` receive.

    All meet at an address of number 0, whose `port` is a free one if it is 0. They join when the
    first tensor travels, and stay together. What fails raises one of FAILURES, after `silence`
    seconds at the latest.
    """

    def __init__(
        self,
        host: str,
        port: int,
        number: int,
        size: int,
        device: torch.device,
        silence: float = SILENCE,
    ) -> None:
        self._number, self._size, self._device = number, size, device
        self._silence = timedelta(seconds=silence)
        self._host, self.port = host, port
        self._store: TCPStore | None = None
        self._group: Any = None  # a Backend
        if number == 0:
            self._store = self._meet()
            self.port = self._store.port

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        """Send tensors one after the other, from any device."""
        with self._aside():
            for tensor in tensors.values():
                self._broadcast(tensor.to(self._device))

    def receive(self, forms: Sequence[Form]) -> dict[str, Tensor]:
        """Receive what number 0 sends, in the memory of the CPU; `forms` are in its order."""
        found = {}
        with self._aside():
            for name, dtype, shape in forms:
                room = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=self._device)
                self._broadcast(room)
                found[name] = room.cpu()
        return found

    def close(self) -> None:
        """Let the others go, also in the middle of a tensor."""
        if self._group is not None:
            self._group.abort()
        self._group = self._store = None

    def _meet(self) -> TCPStore:
        first = self._number == 0
        return TCPStore(self._host, self.port, None, first, self._silence, wait_for_workers=False)

    def _join(self) -> Any:
        self._store = self._store or self._meet()
        if self._device.type != "cuda":
            return c10d.ProcessGroupGloo(self._store, self._number, self._size, self._silence)
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = 2 * self._silence  # then NCCL's watchdog ends the whole process
        return c10d.ProcessGroupNCCL(self._store, self._number, self._size, options)

    def _broadcast(self, tensor: Tensor) -> None:
        if self._group is None:
            self._group = self._join()
        work = self._group.broadcast(tensor, 0)
        until = time.monotonic() + self._silence.total_seconds()
        while not work.is_completed():
            if time.monotonic() > until:
                raise TimeoutError(f"a tensor took {self._silence.total_seconds():g} s")
            time.sleep(PACE)
        work.wait()

    def _aside(self) -> AbstractContextManager[object]:
        """Return a context in which tensors travel beside what else a GPU computes."""
        if self._device.type != "cuda":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.Stream(self._device))


def forms_of(tensors: Mapping[str, Tensor]) -> list[Form]:
    """Return the forms that the receivers have to know, in the order in which tensors are sent."""
    return [
        (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        for name, tensor in tensors.items()
    ]
