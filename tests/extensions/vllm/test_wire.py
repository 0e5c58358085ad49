"""Broadcast of tensors over gloo on loopback; most endpoints are threads of this process."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from torch import Tensor

from fieldcraft.extensions.vllm.worker.fieldcraft_wire import (
    CHANNEL_ERRORS,
    BroadcastChannel,
    TensorMeta,
    make_tensor_metas,
)

CPU = torch.device("cpu")
HOST = "127.0.0.1"
WEIGHTS = {
    "wide": torch.arange(12.0).reshape(3, 4),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "one": torch.tensor(7.0),
    "empty": torch.empty(0, 5),
}


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Ends:
    """One sender and two receivers."""

    def __init__(self, threads: ThreadPoolExecutor, silence: float = 300.0) -> None:
        self.threads = threads
        self.sender = BroadcastChannel(HOST, 0, 0, 3, CPU, silence)
        self.receivers = [
            BroadcastChannel(HOST, self.sender.port, n, 3, CPU, silence) for n in (1, 2)
        ]

    def receive(self, tensors: dict[str, Tensor]) -> list[Future[Any]]:
        return [
            self.threads.submit(one.receive, make_tensor_metas(tensors)) for one in self.receivers
        ]


def test_all_receivers_get_what_is_sent_as_often_as_it_is(threads: ThreadPoolExecutor) -> None:
    ends = Ends(threads)
    for factor in (1, 3):
        sent = {name: tensor * factor for name, tensor in WEIGHTS.items()}
        coming = ends.receive(sent)
        ends.sender.send(sent)
        for one in coming:
            found = one.result(300)
            assert list(found) == list(sent)
            for name, tensor in sent.items():
                assert found[name].dtype == tensor.dtype
                assert found[name].shape == tensor.shape
                assert torch.equal(found[name], tensor)


def leave_in_the_middle(port: int, forms: list[TensorMeta]) -> None:
    """Receive two tensors, then kill this process."""
    BroadcastChannel(HOST, port, 1, 2, CPU).receive(forms[:2])
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_receiver_that_dies_fails_the_sender() -> None:
    many = {f"{i}": torch.zeros(100_000) for i in range(40)}
    sender = BroadcastChannel(HOST, 0, 0, 2, CPU, timeout_seconds=300)
    process = get_context("spawn").Process(
        target=leave_in_the_middle, args=(sender.port, make_tensor_metas(many))
    )
    process.start()
    with pytest.raises(CHANNEL_ERRORS):
        sender.send(many)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_who_does_not_come_is_not_waited_for() -> None:
    sender = BroadcastChannel(HOST, 0, 0, 2, CPU, timeout_seconds=1)
    with pytest.raises(CHANNEL_ERRORS):
        sender.send(WEIGHTS)


def test_what_is_not_sent_is_not_waited_for(threads: ThreadPoolExecutor) -> None:
    ends = Ends(threads)
    coming = ends.receive(WEIGHTS)
    ends.sender.send(WEIGHTS)
    for one in coming:
        one.result(300)
    ends.receivers[0]._timeout = timedelta(seconds=0.2)
    with pytest.raises(CHANNEL_ERRORS):
        ends.receivers[0].receive(make_tensor_metas(WEIGHTS))
