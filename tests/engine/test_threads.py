import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checkpoints import tiny_tokenizer
from engine_parity import sharp_model
from fieldcraft.engine import threads as threads_module
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import SamplingParams


@pytest.fixture(autouse=True)
def _thread_count_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("seconds", "fastest"), [((3, 2, 4), 2), ((1, 2, 3), 1), ((3, 2, 1), 4)])
def test_the_fastest_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: tuple[int, ...], fastest: int
) -> None:
    times = dict(zip((1, 2, 4), seconds, strict=True))
    torch.set_num_threads(6)

    def timed(_: object, ids: torch.Tensor) -> float:
        """Return seconds, which for sampling grow with the number of threads."""
        threads = torch.get_num_threads()
        return threads if ids.shape == threads_module.SAMPLING_SHAPE else times[threads]

    monkeypatch.setattr(threads_module, "time_forward", timed)
    model = sharp_model(tmp_path, "llama")
    assert threads_module.find_fastest_threads(model) == threads_module.ThreadCounts(fastest, 1)
    assert torch.get_num_threads() == 6


def test_forwards_like_those_of_a_run_are_timed(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = sharp_model(tmp_path, "llama")
    shapes: list[torch.Size] = []
    model.register_forward_pre_hook(lambda _module, args: shapes.append(args[0].shape))
    assert threads_module.find_fastest_threads(model) == threads_module.ThreadCounts(1, 1)
    assert set(shapes) == {(8, 256), (128, 1)}


def test_an_engine_samples_with_its_own_number_of_threads(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    model = sharp_model(tmp_path, "llama")
    seen: set[int] = set()
    model.register_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    for threads, expected in ((3, 3), (None, 2)):
        engine = LocalEngine(model, tiny_tokenizer(), max_num_seqs=2, threads=threads)
        asyncio.run(engine.generate([5, 6], SamplingParams(max_tokens=2), "s"))
        assert seen == {expected}
        assert torch.get_num_threads() == 2
        seen.clear()


def test_a_slow_model_is_measured_with_few_forwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[torch.Size] = []

    def timed(model: object, ids: torch.Tensor) -> float:
        taken.append(ids.shape)
        return 0.9 * threads_module.MAX_MEASURE_SECONDS

    monkeypatch.setattr(threads_module, "time_forward", timed)
    monkeypatch.setattr(threads_module, "LARGE_MODEL_PARAMETERS", 10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    threads_module.find_fastest_threads(sharp_model(tmp_path, "llama"))
    assert taken == 4 * [torch.Size((1, 256))] + 4 * [torch.Size((128, 1))]
