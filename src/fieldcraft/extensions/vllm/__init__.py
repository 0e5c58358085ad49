"""Engine that samples from vLLM servers over HTTP."""

from fieldcraft.config.choices import EngineFeatures

DEFAULT_KV_CACHE_GB = 1.0
FEATURES = EngineFeatures(
    several_models=False,
    cluster="servers",
    tensor_parallel=True,
    kv_cache_gb=DEFAULT_KV_CACHE_GB,
)
