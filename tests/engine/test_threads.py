from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine_parity import sharp_model
from fieldcraft.engine import threads


@pytest.fixture(autouse=True)
def _thread_count_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("seconds", "fastest"), [((3, 2, 4), 2), ((1, 2, 3), 1), ((3, 2, 1), 4)])
def test_fastest_number_of_threads_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: tuple[int, ...], fastest: int
) -> None:
    times = dict(zip((1, 2, 4), seconds, strict=True))
    torch.set_num_threads(6)
    monkeypatch.setattr(threads, "_seconds", lambda *_: times[torch.get_num_threads()])
    assert threads.use_fastest_threads(sharp_model(tmp_path, "llama")) == fastest
    assert torch.get_num_threads() == fastest


def test_a_forward_is_timed(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = sharp_model(tmp_path, "llama")
    shapes: list[torch.Size] = []
    model.register_forward_pre_hook(lambda _module, args: shapes.append(args[0].shape))
    assert threads.use_fastest_threads(model, tokens=7) == 1
    assert set(shapes) == {(1, 7)}
