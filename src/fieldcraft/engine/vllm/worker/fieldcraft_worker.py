"""A worker of vLLM with what fieldcraft adds: it loads weights and says what it serves.

It runs in vLLM's own process and Python, so it imports nothing of fieldcraft. vLLM finds it by
`--worker-extension-cls fieldcraft_worker.Worker`, with this file's folder on PYTHONPATH.
"""

from typing import Any

from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

# For --weight-transfer-config '{"backend": "fieldcraft"}'
WeightTransferEngineFactory.register_engine(
    "fieldcraft", "fieldcraft_transfer", "BroadcastReceiver"
)


class Worker:
    """Methods for `/collective_rpc`; vLLM adds them to its own class of workers."""

    model_runner: Any
    vllm_config: Any
    weight_transfer_engine: Any

    def fieldcraft_describe(self) -> dict[str, Any]:
        """Return a description of the model that is served. `config` is the model's config.json.
        `seeds` says whether requests may have seeds: on a CPU vLLM dies of one whose prompt is cut
        into pieces (chunked prefill)."""
        chunked = bool(self.vllm_config.scheduler_config.enable_chunked_prefill)
        return {
            "config": self.vllm_config.model_config.hf_config.to_dict(),
            "seeds": self.model_runner.device.type != "cpu" or not chunked,
        }

    def fieldcraft_load(self, folder: str) -> None:
        """Take over the weights in `folder`, a checkpoint of the architecture that is served."""
        runner = self.model_runner
        runner.reload_weights(weights_path=folder)
        pack_embeddings(runner.get_model(), runner.device)

    def fieldcraft_arrived(self) -> str:
        """Return the reason why weights that a trainer sends have not come, once that is known; ""
        if they have."""
        reason: str = self.weight_transfer_engine.finish_receive()
        return reason


def pack_embeddings(model: Any, device: Any) -> None:
    """Pack the weights of an output layer that shares the embedding. On a CPU vLLM packs the
    weights of linear layers when it loads them, but a reload does not pack those of such a layer
    again."""
    if device.type == "cpu":
        for module in model.modules():
            if isinstance(module, VocabParallelEmbedding):  # an output layer is one, too
                module.quant_method.process_weights_after_loading(module)
