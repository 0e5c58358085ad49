"""The engine with which vLLM takes over weights that trainers send, by its transfer interface.

It runs in vLLM's own process and Python, so it imports nothing of fieldcraft.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fieldcraft_wire import FAILURES, Form, Wire
from fieldcraft_worker import pack_embeddings
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)


@dataclass
class Coming(WeightTransferInitInfo):
    """The announcement of what a trainer at an address is about to send to `size - 1` workers.
    Those of this server have the numbers from `first` on."""

    host: str
    port: int
    first: int
    size: int
    forms: list[Form]


@dataclass
class Arrived(WeightTransferUpdateInfo):
    """Sign that all of it has come."""


class Receiver(WeightTransferEngine[Coming, Arrived]):
    """A receiver of weights that travel while the server samples: a thread receives them into
    memory of the CPU. They are loaded by vLLM's calls for an update, while the server is paused."""

    init_info_cls = Coming
    update_info_cls = Arrived

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._at: tuple[str, int] | None = None
        self._wire: Wire | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._coming: Future[dict[str, Any]] | None = None

    def init_transfer_engine(self, init_info: Coming) -> None:
        """Begin to receive, and return at once. A trainer is joined if its address is new."""
        at = init_info.host, init_info.port
        if self._at != at:
            self.shutdown()
            number = init_info.first + self.parallel_config.rank
            self._wire = Wire(*at, number, init_info.size, self.device)
            self._thread = ThreadPoolExecutor(1, "fieldcraft-wire")
            self._at = at
        assert self._thread is not None
        assert self._wire is not None
        self._coming = self._thread.submit(self._wire.receive, init_info.forms)

    def arrived(self) -> str:
        """Wait for what comes. Returns the reason if it has not come, else an empty string."""
        assert self._coming is not None
        try:
            self._coming.result()
        except FAILURES as error:
            self._coming = None
            return f"{type(error).__name__}: {error}"
        return ""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Arrived) -> None:
        """Load what has come."""
        assert self._coming is not None
        coming, self._coming = self._coming, None
        self.model.load_weights(iter(coming.result().items()))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        pack_embeddings(self.model, self.device)

    def shutdown(self) -> None:
        """Leave the trainer, also in the middle of a tensor."""
        if self._wire is not None and self._thread is not None:
            self._wire.close()
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._at = self._wire = self._thread = None
