"""Ranks that train together, each in a process of Ray's."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from fieldcraft.cluster.cargo import Packed, merged, pack, size
from fieldcraft.cluster.health import silence
from fieldcraft.cluster.outbox import Outbox
from fieldcraft.cluster.remote import import_ray
from fieldcraft.cluster.session import Session
from fieldcraft.engine.vllm.worker.fieldcraft_wire import Form
from fieldcraft.engine.writing import write_model
from fieldcraft.tools.serving import free_port
from fieldcraft.train.sharding.mesh import Place
from fieldcraft.train.sharding.rank import Rank
from fieldcraft.train.sharding.state import gathered
from fieldcraft.types import UserError

PULSE = 10.0  # seconds of waiting after which ranks are asked whether they live
HEALTH = "health"  # Ray's group of calls that are answered beside those of training
PATIENCE = 60.0  # seconds in which the death of a rank is known, once another one misses it
ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR of Linux


class RanksLost(Exception):
    """Loss of a rank that has died or hangs, and with it of what all ranks had in memory."""


class RankHost:
    """The process of a rank: it runs a `Rank`, and another one for the next stage."""

    def __init__(self) -> None:
        self._rank: Rank | None = None
        self._outbox: Outbox | None = None

    def process(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def address(self, port: int) -> str:
        """Return the address at which the others find this process; the port 0 is any free one."""
        host = import_ray().util.get_node_ip_address()
        return f"tcp://{host}:{port or free_port(host)}"

    def join(self, place: Place) -> None:
        """Become a rank. All processes do at the same time."""
        host = import_ray().util.get_node_ip_address()
        # Otherwise gloo takes the address of the host's name, which others may not reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(host))
        if self._rank is not None:
            self._rank.close()
        self._rank = Rank(place)
        self._outbox = self._outbox or Outbox(host, torch.device(place.device))

    def call(self, method: str, share: tuple[Any, ...]) -> Any:
        """Call a method of the rank with its share, and return what it returns."""
        return getattr(self._rank, method)(*share)

    def whole(self, name: str, dtype: torch.dtype) -> tuple[dict[str, Packed], int]:
        """Return the weights of a policy as engines take them over, and their bytes. An adapter is
        merged. All ranks take part, and the first one has them."""
        model, state = self._merged(name)
        if model is None:
            return {}, 0
        packed = pack(state, dtype)
        return packed, size(packed)

    def write(self, name: str, folder: Path) -> None:
        """Write the weights of a policy, an adapter merged, into a folder, as transformers loads
        it."""
        model, state = self._merged(name)
        if model is not None:
            write_model(folder, model, state)

    def keep(self, name: str, label: str, dtype: torch.dtype, others: Sequence[str]) -> list[Form]:
        """Keep the weights of a policy, an adapter merged, in the outbox, and return their forms.
        All ranks take part."""
        model, state = self._merged(name)
        if model is None:
            return []
        assert self._outbox is not None
        return self._outbox.keep(label, model, state, dtype, others)

    def post(self, method: str, *args: Any) -> Any:
        """Call a method of the outbox, and return what it returns."""
        return getattr(self._outbox, method)(*args)

    def _merged(self, name: str) -> tuple[Any, dict[str, Tensor]]:
        """Return a model and its whole weights on the first rank, and no model on others."""
        assert self._rank is not None
        first = self._rank.mesh.rank == 0
        state = gathered(self._rank.kept[name].weights, first)
        if not first:
            return None, {}
        model = self._rank.models[name].model
        return model, merged(state, model)


@final
class RayRanks:
    """The trainers of a run; obeys `train.sharding.trainer.Ranks`. A process that has died is
    started again by `begin`, and the others with it."""

    def __init__(self, session: Session) -> None:
        self.count = session.settings.trainers
        self.context = session.settings.context
        self._session = session
        self._actors: list[Any] = []

    def begin(self) -> None:
        """Start new ranks without any model. Raises UserError if they do not reach each other."""
        if not self._actors:
            places = self._session.of("trainer")
            self._actors = [
                self._session.actor(place, RankHost, concurrency_groups={HEALTH: 1})
                for place in places
            ]
        port = self._session.settings.port
        address = self._all([self._actors[0].address.remote(port)])[0]
        device = "cuda:0" if self._session.device == "cuda" else "cpu"
        ranks = [
            Place(rank=r, count=self.count, context=self.context, address=address, device=device)
            for r in range(self.count)
        ]
        self._all([actor.join.remote(p) for actor, p in zip(self._actors, ranks, strict=True)])

    def call(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call all ranks as `Ranks.call` does. Raises RanksLost if one has died or hangs."""
        pairs = zip(self._actors, shares, strict=True)
        return self._all([actor.call.remote(method, _absolute(share)) for actor, share in pairs])

    def whole(self, name: str, dtype: torch.dtype) -> tuple[Any, int]:
        """Return Ray's handle of the weights of a policy, and their bytes. They stay where they
        are."""
        asked = [actor.whole.options(num_returns=2).remote(name, dtype) for actor in self._actors]
        sizes = self._all([size for _, size in asked])
        return asked[0][0], sizes[0]

    def write(self, name: str, folder: Path) -> None:
        """Write the weights of a policy, an adapter merged, into a folder that all nodes see."""
        self._all([actor.write.remote(name, folder.absolute()) for actor in self._actors])

    def keep(self, name: str, label: str, dtype: torch.dtype, others: Sequence[str]) -> list[Form]:
        """Keep the weights of a policy in the outbox of the first rank; see `Outbox.keep`."""
        asked = [actor.keep.remote(name, label, dtype, others) for actor in self._actors]
        forms: list[Form] = self._all(asked)[0]
        return forms

    @property
    def first(self) -> Any:
        """Ray's handle of the first rank."""
        return self._actors[0]

    def open(self, size: int) -> tuple[str, int]:
        """Open a meeting point as `Outbox.open` does."""
        at: tuple[str, int] = self._all([self.first.post.remote("open", size)])[0]
        return at

    def send(self, label: str) -> str:
        """Send weights as `Outbox.send` does."""
        why: str = self._all([self.first.post.remote("send", label)])[0]
        return why

    def write_kept(self, label: str, folder: Path) -> None:
        """Write kept weights as `Outbox.write` does."""
        self._all([self.first.post.remote("write", label, folder.absolute())])

    async def close(self) -> None:
        """End all processes."""
        self._kill()

    def _kill(self) -> None:
        for actor in self._actors:
            import_ray().kill(actor)
        self._actors = []

    def _end_silent(self) -> None:
        """Raise RanksLost if one rank does not answer; all are ended then."""
        ray = import_ray()
        asked = [a.process.options(concurrency_group=HEALTH).remote() for a in self._actors]
        seconds = self._session.settings.silence
        _, silent = ray.wait(asked, num_returns=len(asked), timeout=seconds)
        if silent:
            self._kill()
            raise RanksLost(f"a rank hangs ({silence(seconds)})")

    def _all(self, asked: Sequence[Any]) -> list[Any]:
        ray = import_ray()
        waiting = list(asked)
        failed: Exception | None = None
        while waiting:
            done, waiting = ray.wait(waiting, timeout=PULSE if failed is None else PATIENCE)
            if not done and failed is not None:
                break
            if not done:
                self._end_silent()
                continue
            try:
                ray.get(done)
            except ray.exceptions.RayActorError as error:
                self._kill()
                raise RanksLost("a rank has died") from error
            except ray.exceptions.RayTaskError as error:
                failed = failed or error
        if failed is None:
            return ray.get(list(asked))
        cause = getattr(failed, "cause", None)
        raise cause if isinstance(cause, UserError) else failed


def _absolute(share: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with absolute paths: processes of Ray's have another working folder."""
    return tuple(one.absolute() if isinstance(one, Path) else one for one in share)


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address. Raises UserError where no
    interface has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                asked = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(asking.fileno(), ADDRESS_OF_INTERFACE, asked)[20:24]
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(found) == address:
                return name
    raise UserError(
        f"no network interface of this machine has the address {address} that Ray knows it by:"
        " start Ray with --node-ip-address of one that has."
    )
