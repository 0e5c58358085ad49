"""Tensors by broadcast: all ends in threads of this process, over gloo on loopback."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from fieldcraft.engine.vllm.worker.fieldcraft_wire import FAILURES, Wire, forms_of

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
    """A sender and two receivers."""

    def __init__(self, threads: ThreadPoolExecutor, silence: float = 60.0) -> None:
        self.threads = threads
        self.sender = Wire(HOST, 0, 0, 3, CPU, silence)
        self.receivers = [Wire(HOST, self.sender.port, n, 3, CPU, silence) for n in (1, 2)]

    def receive(self, tensors: dict[str, Tensor]) -> list[Future[Any]]:
        return [self.threads.submit(one.receive, forms_of(tensors)) for one in self.receivers]


def test_all_receivers_get_what_is_sent_as_often_as_it_is(threads: ThreadPoolExecutor) -> None:
    ends = Ends(threads)
    for factor in (1, 3):
        sent = {name: tensor * factor for name, tensor in WEIGHTS.items()}
        coming = ends.receive(sent)
        ends.sender.send(sent)
        for one in coming:
            found = one.result(60)
            assert list(found) == list(sent)
            for name, tensor in sent.items():
                assert found[name].dtype == tensor.dtype
                assert found[name].shape == tensor.shape
                assert torch.equal(found[name], tensor)


def test_a_receiver_that_leaves_fails_the_others_and_the_sender(
    threads: ThreadPoolExecutor,
) -> None:
    ends = Ends(threads, silence=20)
    many = {f"{i}": torch.zeros(500_000) for i in range(40)}
    first, second = ends.receiver_that_leaves_after(many, 10)
    with pytest.raises(FAILURES):
        ends.sender.send(many)
    ends.sender.close()
    with pytest.raises(FAILURES):
        second.result(60)
    first.result(60)


def test_who_does_not_come_is_not_waited_for(threads: ThreadPoolExecutor) -> None:
    sender = Wire(HOST, 0, 0, 2, CPU, silence=1)
    with pytest.raises(FAILURES):
        sender.send(WEIGHTS)


def test_a_tensor_that_nobody_takes_is_not_waited_for(threads: ThreadPoolExecutor) -> None:
    ends = Ends(threads, silence=2)
    coming = ends.receive(WEIGHTS)
    ends.sender.send(WEIGHTS)
    for one in coming:
        one.result(60)
    with pytest.raises(FAILURES):
        ends.receivers[0].receive(forms_of(WEIGHTS))


def test_a_receiver_can_be_called_away(threads: ThreadPoolExecutor) -> None:
    """Its server meets the trainer at another address while the old broadcast goes nowhere."""
    ends = Ends(threads)
    coming = ends.receive(WEIGHTS)
    ends.sender.send(WEIGHTS)
    for one in coming:
        one.result(60)
    waiting = ends.receive(WEIGHTS)
    time.sleep(0.2)
    for one in ends.receivers:
        one.close()
    for one in waiting:
        with suppress(TimeoutError), pytest.raises((*FAILURES, AttributeError)):
            one.result(90)
