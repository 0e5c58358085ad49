"""The engine with which vLLM takes over weights that trainers send, by its transfer interface.

It runs in vLLM's own process and Python, so it imports nothing of fieldcraft.
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
    """The announcement of what a trainer at an address is about to send to `size - 1` workers.
    Those of this server have the numbers from `first` on."""

    host: str
    port: int
    first: int
    size: int
    forms: list[TensorMeta]


@dataclass
class BroadcastUpdateInfo(WeightTransferUpdateInfo):
    """Sign that all of it has come."""


class BroadcastReceiver(WeightTransferEngine[BroadcastInitInfo, BroadcastUpdateInfo]):
    """A receiver of weights that travel while the server samples: a thread receives them into
    memory of the CPU. They are loaded by vLLM's calls for an update, while the server is paused."""

    init_info_cls = BroadcastInitInfo
    update_info_cls = BroadcastUpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._address: tuple[str, int] | None = None
        self._channel: BroadcastChannel | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._pending: Future[dict[str, Any]] | None = None

    def init_transfer_engine(self, init_info: BroadcastInitInfo) -> None:
        """Begin to receive, and return at once. A trainer is joined if its address is new."""
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
        """Wait for what comes. Returns the reason if it has not come, else an empty string."""
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
        """Load what has come."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        self.model.load_weights(iter(pending.result().items()))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        pack_embeddings(self.model, self.device)

    def shutdown(self) -> None:
        """Leave the trainer, also in the middle of a tensor."""
        if self._channel is not None and self._executor is not None:
            self._channel.close()
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._address = self._channel = self._executor = None
