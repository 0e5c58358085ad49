"""Broadcast of tensors over NCCL, from one device to another one."""

from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest
import torch

from fieldcraft.extensions.vllm.worker.fieldcraft_wire import (
    BroadcastChannel,
    TensorMeta,
    make_tensor_metas,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
HOST = "127.0.0.1"


def receive(port: int, forms: list[TensorMeta], pipe: Connection) -> None:
    channel = BroadcastChannel(HOST, port, 1, 2, torch.device("cuda:1"))
    for _ in range(2):
        pipe.send({name: tensor.numpy() for name, tensor in channel.receive(forms).items()})


def test_what_is_sent_arrives_as_often_as_it_is() -> None:
    torch.cuda.set_device(0)
    tensors = {"wide": torch.randn(1000, 1000), "one": torch.tensor(7.0)}
    sender = BroadcastChannel(HOST, 0, 0, 2, torch.device("cuda:0"))
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(
        target=receive, args=(sender.port, make_tensor_metas(tensors), there)
    )
    process.start()
    for factor in (1, 3):
        sent = {name: tensor * factor for name, tensor in tensors.items()}
        sender.send(sent)
        assert here.poll(120)
        found = here.recv()
        assert all(torch.equal(torch.from_numpy(found[name]), sent[name]) for name in sent)
    process.join()
