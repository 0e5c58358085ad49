"""Engine that samples in the process of the run."""

from fieldcraft.config.choices import EngineFeatures

FEATURES = EngineFeatures(in_process=True, cluster="processes")
