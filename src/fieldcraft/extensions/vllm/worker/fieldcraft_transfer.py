"""Implementation of vLLM's weight transfer interface that receives broadcasts of a trainer.

It runs in vLLM's process and Python environment, so it imports nothing from fieldcraft.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fieldcraft_wire import CHANNEL_ERRORS, BroadcastChannel, TensorMeta
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
class BroadcastInitInfo(WeightTransferInitInfo):
    """Announcement of a broadcast from a trainer at an address to `size - 1` workers. The ranks of
    this server's workers start at `first`."""

    host: str
    port: int
    first: int
    size: int
    forms: list[TensorMeta]


@dataclass
class BroadcastUpdateInfo(WeightTransferUpdateInfo):
    """Signal that all tensors have been received."""


class BroadcastReceiver(WeightTransferEngine[BroadcastInitInfo, BroadcastUpdateInfo]):
    """Receiver of weights that are sent while the server samples. A thread receives them into CPU
    memory. vLLM's update calls load them while the server is paused."""

    init_info_cls = BroadcastInitInfo
    update_info_cls = BroadcastUpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._address: tuple[str, int] | None = None
        self._channel: BroadcastChannel | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._pending: Future[dict[str, Any]] | None = None

    def init_transfer_engine(self, init_info: BroadcastInitInfo) -> None:
        """Start receiving, and return immediately. Joins the trainer's channel if the address is
        new."""
        address = init_info.host, init_info.port
        if self._address != address:
            self.shutdown()
            rank = init_info.first + self.parallel_config.rank
            self._channel = BroadcastChannel(*address, rank, init_info.size, self.device)
            self._executor = ThreadPoolExecutor(1, "fieldcraft-broadcast")
            self._address = address
        assert self._executor is not None
        assert self._channel is not None
        self._pending = self._executor.submit(self._channel.receive, init_info.forms)

    def finish_receive(self) -> str:
        """Wait for the weights. Returns the reason if they were not received, else an empty
        string."""
        assert self._pending is not None
        try:
            self._pending.result()
        except CHANNEL_ERRORS as error:
            self._pending = None
            return f"{type(error).__name__}: {error}"
        return ""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: BroadcastUpdateInfo) -> None:
        """Load the received weights."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        self.model.load_weights(iter(pending.result().items()))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        pack_embeddings(self.model, self.device)

    def shutdown(self) -> None:
        """Leave the trainer's channel, even in the middle of a tensor."""
        if self._channel is not None and self._executor is not None:
            self._channel.close()
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._address = self._channel = self._executor = None
