"""What fieldcraft adds to a worker of vLLM: it loads weights from a folder and says what it serves.

It runs in vLLM's own process and Python, so it imports nothing of fieldcraft. vLLM finds it by
`--worker-extension-cls fieldcraft_worker.Worker`, with this file's folder on PYTHONPATH.
"""

from typing import Any

from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding


class Worker:
    """Methods for `/collective_rpc`; vLLM adds them to its own class of workers."""

    model_runner: Any
    vllm_config: Any

    def fieldcraft_describe(self) -> dict[str, Any]:
        """`config` is the model's config.json. `seeds` says whether requests may have seeds: on a
        CPU vLLM dies of one whose prompt is cut into pieces (chunked prefill)."""
        chunked = bool(self.vllm_config.scheduler_config.enable_chunked_prefill)
        return {
            "config": self.vllm_config.model_config.hf_config.to_dict(),
            "seeds": self.model_runner.device.type != "cpu" or not chunked,
        }

    def fieldcraft_load(self, folder: str) -> None:
        """Take over the weights in `folder`, a checkpoint of the architecture that is served.

        On a CPU vLLM packs the weights of linear layers when it loads them. A reload packs them
        again, but for those of an output layer that shares the embedding: they are packed here.
        """
        runner = self.model_runner
        runner.reload_weights(weights_path=folder)
        if runner.device.type == "cpu":
            for module in runner.get_model().modules():
                if isinstance(module, VocabParallelEmbedding):  # an output layer is one, too
                    module.quant_method.process_weights_after_loading(module)
