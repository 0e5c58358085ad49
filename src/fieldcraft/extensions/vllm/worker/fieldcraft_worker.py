"""Extension of vLLM's worker, which loads weights and describes the served model.

It runs in vLLM's process and Python environment, so it imports nothing from fieldcraft. vLLM loads
it with `--worker-extension-cls fieldcraft_worker.Worker`, with this file's folder on PYTHONPATH.
"""

from typing import Any

from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

# For --weight-transfer-config '{"backend": "fieldcraft"}'
WeightTransferEngineFactory.register_engine(
    "fieldcraft", "fieldcraft_transfer", "BroadcastReceiver"
)


class Worker:
    """Methods for `/collective_rpc`; vLLM adds them to its worker class."""

    model_runner: Any
    vllm_config: Any
    weight_transfer_engine: Any

    def fieldcraft_describe(self) -> dict[str, Any]:
        """Return a description of the served model. `config` is the model's config.json. `seeds` is
        True if requests may have seeds: on a CPU, vLLM crashes on a seeded request with chunked
        prefill."""
        chunked = bool(self.vllm_config.scheduler_config.enable_chunked_prefill)
        return {
            "config": self.vllm_config.model_config.hf_config.to_dict(),
            "seeds": self.model_runner.device.type != "cpu" or not chunked,
        }

    def fieldcraft_load(self, folder: str) -> None:
        """Load the weights in `folder`, a checkpoint of the served architecture."""
        runner = self.model_runner
        runner.reload_weights(weights_path=folder)
        pack_embeddings(runner.get_model(), runner.device)

    def fieldcraft_arrived(self) -> str:
        """Wait for the weights that a trainer sends. Returns the reason if they were not received,
        else an empty string."""
        reason: str = self.weight_transfer_engine.finish_receive()
        return reason


def pack_embeddings(model: Any, device: Any) -> None:
    """Pack the weights of an output layer that is tied to the embedding. On a CPU, vLLM packs the
    weights of linear layers at load time, but a reload does not repack a tied output layer."""
    if device.type == "cpu":
        for module in model.modules():
            if isinstance(module, VocabParallelEmbedding):  # the output layer is one, too
                module.quant_method.process_weights_after_loading(module)
