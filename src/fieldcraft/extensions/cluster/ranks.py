"""Ranks that train together, each in a Ray actor, and their weights."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import uuid
from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, final
from weakref import WeakSet

import torch
from torch import Tensor

from fieldcraft.engine.weights import FolderFactory, TensorMeta, WeightSnapshot, merge_lora
from fieldcraft.extensions.cluster.remote import describe_heartbeat_timeout, import_ray
from fieldcraft.extensions.cluster.session import ClusterSession
from fieldcraft.extensions.cluster.sharding.mesh import RankPlacement
from fieldcraft.extensions.cluster.sharding.rank import TrainerRank
from fieldcraft.extensions.cluster.sharding.state import gather_full
from fieldcraft.extensions.cluster.sharding.trainer import ShardedTrainer
from fieldcraft.extensions.cluster.weights import (
    PackedTensor,
    WeightSender,
    count_bytes,
    pack_tensors,
)
from fieldcraft.tools.addresses import find_free_port
from fieldcraft.train.parity import run_policy_probe
from fieldcraft.train.protocols import TrainersLostError
from fieldcraft.types import UserError

HEALTH_CHECK_SECONDS = 10.0  # seconds of waiting before ranks are checked
HEALTH_GROUP = "health"  # Ray's concurrency group for calls during training
LOSS_DETECTION_SECONDS = (
    60.0  # seconds until the crash of a rank is known, after another rank failed because of it
)
SIOCGIFADDR = 0x8915  # SIOCGIFADDR of Linux


class TrainerActor:
    """Actor of a rank, which runs a new `TrainerRank` for each stage."""

    def __init__(self) -> None:
        self._rank: TrainerRank | None = None
        self._sender: WeightSender | None = None

    def get_process_id(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def make_address(self, port: int) -> str:
        """Return the address at which other ranks reach this process; port 0 selects a free one."""
        host = import_ray().util.get_node_ip_address()
        return f"tcp://{host}:{port or find_free_port(host)}"

    def join_group(self, placement: RankPlacement) -> None:
        """Join the process group as a rank. All processes must join at the same time."""
        host = import_ray().util.get_node_ip_address()
        # Otherwise gloo uses the address of the host name, which may be unreachable for others.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", find_interface(host))
        if self._rank is not None:
            self._rank.close()
        self._rank = TrainerRank(placement)
        self._sender = self._sender or WeightSender(host, torch.device(placement.device))

    def call_rank(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the rank with its share of the arguments, and return the result."""
        return getattr(self._rank, method)(*arguments)

    def gather_weights(self, name: str, dtype: torch.dtype) -> tuple[dict[str, PackedTensor], int]:
        """Return the weights of a policy in the form for engines, and their bytes. An adapter is
        merged. All ranks take part; only the first one gets the weights."""
        model, state = self._gather_merged(name)
        if model is None:
            return {}, 0
        packed = pack_tensors(state, dtype)
        return packed, count_bytes(packed)

    def store_weights(
        self, name: str, label: str, dtype: torch.dtype, retained_labels: Sequence[str]
    ) -> list[TensorMeta]:
        """Store the weights of a policy, with the adapter merged, in the weight sender. Return the
        names, types and shapes of the tensors. All ranks take part."""
        model, state = self._gather_merged(name)
        if model is None:
            return []
        assert self._sender is not None
        return self._sender.store(label, model, state, dtype, retained_labels)

    def call_sender(self, method: str, *args: Any) -> Any:
        """Call a method of the weight sender, and return its result."""
        return getattr(self._sender, method)(*args)

    def _gather_merged(self, name: str) -> tuple[Any, dict[str, Tensor]]:
        """Return a model and its full tensors on the first rank, and no model on others."""
        assert self._rank is not None
        is_first = self._rank.mesh.rank == 0
        state = gather_full(self._rank.states[name].weights, is_first)
        if not is_first:
            return None, {}
        model = self._rank.models[name].model
        return model, dict(merge_lora(state, model))


@final
class RayTrainerGroup:
    """Trainers of a run; implements `train.sharding.trainer.TrainerGroup`. After a crash, `start`
    restarts all processes."""

    def __init__(self, session: ClusterSession) -> None:
        self.world_size = session.settings.trainers
        self.context_parallel = session.settings.context_parallel
        self.session = session
        self._actors: list[Any] = []
        self._snapshots = WeakSet[WeightSnapshot]()  # taken from the weight sender

    def start(self) -> None:
        """Start new ranks without models. Raises UserError if they cannot reach each other."""
        if not self._actors:
            placements = self.session.select_placements("trainer")
            self._actors = [
                self.session.start_actor(
                    placement, TrainerActor, concurrency_groups={HEALTH_GROUP: 1}
                )
                for placement in placements
            ]
        port = self.session.settings.rendezvous_port
        address = self._get_all([self._actors[0].make_address.remote(port)])[0]
        device = "cuda:0" if self.session.device == "cuda" else "cpu"
        ranks = [
            RankPlacement(
                rank=r,
                world_size=self.world_size,
                context_parallel=self.context_parallel,
                address=address,
                device=device,
            )
            for r in range(self.world_size)
        ]
        self._get_all(
            [actor.join_group.remote(p) for actor, p in zip(self._actors, ranks, strict=True)]
        )

    def call(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call all ranks as `TrainerGroup.call` does. Raises TrainersLostError if a rank has
        crashed or hangs."""
        pairs = zip(self._actors, shares, strict=True)
        return self._get_all(
            [actor.call_rank.remote(method, _make_absolute(share)) for actor, share in pairs]
        )

    def gather_weights(self, name: str, dtype: torch.dtype) -> tuple[Any, int]:
        """Return Ray's handle of the weights of a policy, and their bytes, without moving the
        weights."""
        references = [
            actor.gather_weights.options(num_returns=2).remote(name, dtype)
            for actor in self._actors
        ]
        sizes = self._get_all([size for _, size in references])
        return references[0][0], sizes[0]

    def store_weights(self, name: str, label: str, dtype: torch.dtype) -> list[TensorMeta]:
        """Store the weights of a policy under a label in the weight sender of the first rank, which
        drops those of snapshots that no longer exist."""
        retained_labels = [snapshot.label for snapshot in self._snapshots]
        references = [
            actor.store_weights.remote(name, label, dtype, retained_labels)
            for actor in self._actors
        ]
        tensor_metas: list[TensorMeta] = self._get_all(references)[0]
        return tensor_metas

    def add_snapshot(self, snapshot: WeightSnapshot) -> None:
        """Retain the stored weights of a snapshot as long as it exists."""
        self._snapshots.add(snapshot)

    @property
    def first_actor(self) -> Any:
        """Ray's handle of the first rank."""
        return self._actors[0]

    def call_sender(self, method: str, *args: Any) -> Any:
        """Call a method of the `WeightSender` of the first rank, and return its result."""
        return self._get_all([self.first_actor.call_sender.remote(method, *_make_absolute(args))])[
            0
        ]

    async def close(self) -> None:
        """Stop all processes."""
        self._kill()

    def _kill(self) -> None:
        for actor in self._actors:
            import_ray().kill(actor)
        self._actors = []

    def _kill_if_unresponsive(self) -> None:
        """Kill all ranks and raise TrainersLostError if a rank does not respond."""
        ray = import_ray()
        references = [
            a.get_process_id.options(concurrency_group=HEALTH_GROUP).remote() for a in self._actors
        ]
        seconds = self.session.settings.heartbeat_timeout_seconds
        _, unresponsive = ray.wait(references, num_returns=len(references), timeout=seconds)
        if unresponsive:
            self._kill()
            raise TrainersLostError(
                f"a trainer process hangs ({describe_heartbeat_timeout(seconds)})"
            )

    def _get_all(self, references: Sequence[Any]) -> list[Any]:
        ray = import_ray()
        pending = list(references)
        failed: Exception | None = None
        while pending:
            done, pending = ray.wait(
                pending, timeout=HEALTH_CHECK_SECONDS if failed is None else LOSS_DETECTION_SECONDS
            )
            if not done and failed is not None:
                break
            if not done:
                self._kill_if_unresponsive()
                continue
            try:
                ray.get(done)
            except ray.exceptions.RayActorError as error:
                self._kill()
                raise TrainersLostError("a trainer process crashed") from error
            except ray.exceptions.RayTaskError as error:
                failed = failed or error
        if failed is None:
            return ray.get(list(references))
        cause = getattr(failed, "cause", None)
        raise cause if isinstance(cause, UserError) else failed


@final
class ShardedWeights:
    """`WeightSource` of a policy that ranks train. The weights go from the first rank to engines,
    not through this process."""

    def __init__(self, ranks: RayTrainerGroup, trainer: ShardedTrainer, config: Any) -> None:
        self._ranks = ranks
        self._trainer = trainer
        self._config = config

    def pack_snapshot(self, dtype: torch.dtype, version: int) -> WeightSnapshot:
        """Return a snapshot of the current weights for engines, converted to a dtype."""
        probe = run_policy_probe(self._trainer, self._config)
        handle, nbytes = self._ranks.gather_weights(self._trainer.name, dtype)
        return WeightSnapshot(version, probe, nbytes, handle=handle)

    def take_snapshot(
        self, version: int, dtype: torch.dtype, make_folder: FolderFactory
    ) -> WeightSnapshot:
        """Return a snapshot that the first rank sends to servers, or writes for a new server."""
        label = uuid.uuid4().hex
        metas = self._ranks.store_weights(self._trainer.name, label, dtype)
        snapshot = WeightSnapshot(
            version,
            run_policy_probe(self._trainer, self._config),
            sum(prod(shape) for _, _, shape in metas) * dtype.itemsize,
            make_folder(partial(self._ranks.call_sender, "write", label)),
            metas,
            self._ranks,
            label,
        )
        self._ranks.add_snapshot(snapshot)
        return snapshot


def _make_absolute(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with absolute paths, because Ray actors have another working folder."""
    return tuple(
        argument.absolute() if isinstance(argument, Path) else argument for argument in arguments
    )


def find_interface(address: str) -> str:
    """Return the name of the network interface with an address. Raises UserError if no interface
    has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                packed_address = fcntl.ioctl(probe_socket.fileno(), SIOCGIFADDR, request)[20:24]
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(packed_address) == address:
                return name
    raise UserError(
        f"no network interface of this machine has the address {address}, under which Ray lists"
        " it: start Ray with --node-ip-address set to the address of an existing interface."
    )
