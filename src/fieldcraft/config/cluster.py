"""Settings of the processes of a run, on one machine or several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fieldcraft.config.base import ConfigSection

Port = Annotated[int, Field(ge=0, le=65535)]


class ClusterConfig(ConfigSection):
    """Processes that Ray places. Without trainers and engines, the run is a single process.

    A device is a GPU, or a core on a machine without GPUs. A trainer takes one device.
    """

    trainers: NonNegativeInt = 0  # ranks that share one model; 0: the run's own process trains
    context_parallel: PositiveInt = 1  # ranks that share one long sequence
    engines: NonNegativeInt = 0  # processes that sample; 0: the run's own process samples
    tensor_parallel: PositiveInt = 1  # of each engine, on one node
    colocate: bool = False  # engines and trainers alternate on the same devices
    ray_address: str | None = None  # of a Ray cluster; None: RAY_ADDRESS, or Ray on this machine
    rendezvous_port: Port = 0  # for the rendezvous of trainers; 0: a free port
    heartbeat_timeout_seconds: PositiveFloat = 300.0  # silent processes are killed after it

    @property
    def trains_and_samples(self) -> bool:
        """Return whether the run's own process neither trains nor samples."""
        return self.trainers > 0 and self.engines > 0

    @property
    def num_devices(self) -> int:
        """Number of devices that Ray provides; 0 for a single process."""
        sampling = self.engines * self.tensor_parallel
        return self.trainers if self.colocate else self.trainers + sampling

    def find_violations(self) -> Iterator[str]:
        if self.trainers % self.context_parallel or self.context_parallel > max(self.trainers, 1):
            yield (
                f"trainers={self.trainers} cannot be split into groups of"
                f" context_parallel={self.context_parallel}: make trainers a multiple of it"
            )
        if self.colocate and not 0 < self.engines * self.tensor_parallel <= self.trainers:
            yield (
                "colocate puts engines on the devices of trainers, so it needs engines, and as many"
                " trainers as engines x tensor_parallel or more"
            )
