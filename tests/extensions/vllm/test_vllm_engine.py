import asyncio
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.responses import JSONResponse

from engine_parity import PROMPT, TOKENIZER, plain_logprobs, sharp_model
from fieldcraft.config.sections import LoraConfig
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.weights import ModelWeights, WeightFolder
from fieldcraft.extensions.vllm.engine import VllmEngine
from fieldcraft.extensions.vllm.process import require_vllm
from fieldcraft.sampling import NO_TRUNCATION, SamplingParams, StopReason, Truncation
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.types import UserError
from vllm_protocol import Fake
from vllm_rig import VllmRig

GREEDY = SamplingParams(12, 0.0)


def test_it_samples_from_the_weights_in_training(rig: VllmRig) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)
    done = rig.run(lambda: engine.generate(PROMPT, GREEDY, "a"))
    expected = plain_logprobs(rig.model, PROMPT, done.ids, 0.0)
    assert done.ids == expected.argmax(1).tolist()
    assert torch.allclose(torch.tensor(done.logprobs), expected.amax(1), atol=1e-5)
    assert done.text == TOKENIZER.decode(done.ids)
    assert (done.stop_reason, done.versions) == (StopReason.LENGTH, [(0, len(done.ids))])
    assert len(fake.loads) == 1


def test_stop_strings_and_ends_are_those_of_the_local_engine(rig: VllmRig) -> None:
    engine = rig.engine(rig.fake())
    local = LocalEngine(rig.model, TOKENIZER, max_num_seqs=8)
    whole = asyncio.run(local.generate(PROMPT, GREEDY, "a"))
    letters = sorted({c for c in whole.text if c.isalnum()})[:3]
    settings = [SamplingParams(12, 0.0, stop=(letter,)) for letter in letters]

    async def both() -> Any:
        mine = [await engine.generate(PROMPT, s, str(s.stop)) for s in settings]
        theirs = [await local.generate(PROMPT, s, str(s.stop)) for s in settings]
        return mine, theirs

    mine, theirs = rig.run(both)
    assert letters
    for a, b in zip(mine, theirs, strict=True):
        assert (a.ids, a.text, a.stop_reason) == (b.ids, b.text, b.stop_reason)
        assert a.stop_reason is StopReason.STOP


def test_a_stop_string_that_is_not_in_the_turn_does_not_end_it(rig: VllmRig) -> None:
    """vLLM finds the string in text that it decodes with the prompt. The turn then continues."""
    fake = rig.fake()
    answer = fake._answer

    async def false_stop(prompt: list[int], params: dict[str, Any]) -> dict[str, Any]:
        found = await answer(prompt, params | {"max_tokens": min(3, params["max_tokens"])})
        found["choices"][0] |= {"finish_reason": "stop", "stop_reason": "never"}
        return found

    fake._answer = false_stop  # type: ignore[method-assign]
    engine = rig.engine(fake)
    sampling = SamplingParams(10, 0.0, stop=("never",))
    done = rig.run(lambda: engine.generate(PROMPT, sampling, "a"))
    assert len(done.ids) == len(done.logprobs) == 10
    assert done.stop_reason is StopReason.LENGTH
    assert done.ids == plain_logprobs(rig.model, PROMPT, done.ids, 0.0).argmax(1).tolist()


def test_each_publication_has_a_cache_and_a_version_of_its_own(rig: VllmRig) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)

    async def work() -> Any:
        first = await engine.generate(PROMPT, GREEDY, "a")
        for parameter in rig.model.parameters():
            parameter.data.mul_(0.9)
        await engine.update_weights(7)
        size = sum(p.numel() for p in rig.model.parameters()) * 4
        assert size <= engine.last_update_metrics["publish_bytes"] < size + 20_000  # plus the names
        return first, await engine.generate(PROMPT, GREEDY, "a")

    first, second = rig.run(work)
    assert (first.versions, second.versions) == ([(0, len(first.ids))], [(7, len(second.ids))])
    expected = plain_logprobs(rig.model, PROMPT, second.ids, 0.0).amax(1)
    assert torch.allclose(torch.tensor(second.logprobs), expected, atol=1e-5)
    requests = [r for r in fake.requests if r["token_ids"] == PROMPT]
    assert requests[0]["cache_salt"] != requests[1]["cache_salt"]
    assert fake.resets == 2
    assert not Path(fake.loads[0]).exists()  # files of an outdated policy


@pytest.mark.parametrize("how", [{"deaf": True}, {"raw": True}])
def test_a_server_with_other_weights_or_raw_logprobs_stops_the_run(
    rig: VllmRig, how: dict[str, bool]
) -> None:
    engine = rig.engine(rig.fake(**how))
    with pytest.raises(UserError, match="does not sample from the trained weights"):
        rig.run(lambda: engine.generate(PROMPT, GREEDY, "a"))


def test_another_run_on_the_same_server_is_noticed(rig: VllmRig) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)

    async def work() -> None:
        await engine.generate(PROMPT, GREEDY, "a")
        fake.label = "of another run"
        await engine.generate(PROMPT, GREEDY, "b")

    with pytest.raises(UserError, match="several weight versions, or from other weights"):
        rig.run(work)


@pytest.mark.parametrize("release", [True, False])
def test_what_nobody_waits_for_is_dropped_by_the_server(rig: VllmRig, release: bool) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)

    async def work() -> int:
        await engine.update_weights(0)
        fake.stalls_at = 0
        call = asyncio.create_task(engine.generate(PROMPT, GREEDY, "a"))
        while fake.requests[-1]["token_ids"] != PROMPT:
            await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="already generating"):
            await engine.generate(PROMPT, GREEDY, "a")
        with pytest.raises(RuntimeError, match="cannot sleep"):
            await engine.sleep()
        if release:
            engine.release("a")
        else:
            call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(300):
            while not fake.dropped:
                await asyncio.sleep(0.01)
        return fake.dropped

    assert rig.run(work) == 1


def test_a_server_that_dies_is_replaced_by_another(rig: VllmRig) -> None:
    dying, healthy = rig.fake(dies_after=2), rig.fake()
    engine = rig.engine(dying, healthy)

    async def work() -> Any:
        names = [str(i) for i in range(8)]
        return await asyncio.gather(*(engine.generate(PROMPT, GREEDY, name) for name in names))

    done = rig.run(work)
    assert len(dying.requests) > 2
    assert len({tuple(one.ids) for one in done}) == 1
    assert any("died" in event.text for event in rig.messages)


def test_without_a_server_the_run_stops_with_a_sentence(rig: VllmRig) -> None:
    engine = rig.engine(rig.fake(dies_after=1))
    with pytest.raises(UserError, match="failed repeatedly"):
        rig.run(lambda: engine.generate(PROMPT, GREEDY, "a"))


def test_a_server_that_is_not_there(rig: VllmRig) -> None:
    urls = ("http://127.0.0.1:9",)
    engine = VllmEngine(rig.model, TOKENIZER, resources=rig.resources, max_num_seqs=8, urls=urls)
    with pytest.raises(UserError, match=r"no server in engine.urls responds"):
        rig.run(lambda: engine.generate(PROMPT, GREEDY, "a"))
    with pytest.raises(UserError, match="start the server"):
        rig.run(engine.require_usable)


def test_another_version_and_another_model_are_refused(rig: VllmRig) -> None:
    old = rig.engine(rig.fake(version="0.30.1"))
    with pytest.raises(UserError, match=r"vLLM 0.30.1, but only 0.32.x and 0.33.x"):
        rig.run(old.require_usable)
    other = Fake(sharp_model(rig.folder / "other", "llama"))
    engine = rig.engine(other)
    with pytest.raises(UserError, match="model_type is llama, expected qwen3"):
        rig.run(engine.require_usable)


def test_a_server_without_the_worker_extension(rig: VllmRig) -> None:
    fake = rig.fake()

    async def call(request: Any) -> Any:
        message = "'CPUWorker' object has no attribute 'fieldcraft_describe'"
        return JSONResponse({"error": {"message": message}}, status_code=500)

    fake._call = call  # type: ignore[method-assign]
    engine = rig.engine(fake)
    with pytest.raises(UserError, match="without fieldcraft's worker extension"):
        rig.run(engine.require_usable)


def test_seeds_are_sent_where_they_are_safe(rig: VllmRig) -> None:
    for seeds in (True, False):
        fake = rig.fake(seeds=seeds)
        engine = rig.engine(fake)
        sampling = SamplingParams(2, 1.0, seed=2**63 + 5)
        rig.run(lambda engine=engine, how=sampling: engine.generate(PROMPT, how, "a"))
        params = fake.requests[-1]["sampling_params"]
        assert params.get("seed") == (5 if seeds else None)


def test_limits_are_sent_also_where_there_are_none(rig: VllmRig) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)
    for limits in (NO_TRUNCATION, Truncation(top_k=20, top_p=0.9, min_p=0.1)):
        sampling = SamplingParams(2, 1.0, truncation=limits)
        rig.run(lambda engine=engine, how=sampling: engine.generate(PROMPT, how, "a"))
        params = fake.requests[-1]["sampling_params"]
        assert {key: params[key] for key in ("top_k", "top_p", "min_p")} == asdict(limits)


@pytest.mark.parametrize(
    ("ids", "error"), [([], UserError), ([3] * 200, UserError), ([400], ValueError)]
)
def test_prompts_that_cannot_be_sampled_from(
    rig: VllmRig, ids: list[int], error: type[Exception]
) -> None:
    engine = rig.engine(rig.fake())
    with pytest.raises(error):
        rig.run(lambda: engine.generate(ids, GREEDY, "a"))


def test_turns_end_where_the_server_has_no_more_room(rig: VllmRig) -> None:
    engine = rig.engine(rig.fake())
    done = rig.run(lambda: engine.generate([5] * 195, GREEDY, "a"))
    assert (len(done.ids), done.stop_reason) == (5, StopReason.LENGTH)


def test_an_adapter_is_merged_into_what_is_published(rig: VllmRig, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    LoraAdapter(rig.model, LoraConfig(rank=4, alpha=8), seed=0)
    with torch.no_grad():
        for name, parameter in rig.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    before = {name: tensor.clone() for name, tensor in rig.model.state_dict().items()}
    engine = rig.engine(rig.fake())
    rig.run(lambda: engine.generate(PROMPT, GREEDY, "a"))  # this also shows that the probe agrees
    after = rig.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_files_of_weights_that_nobody_holds_are_deleted(rig: VllmRig, tmp_path: Path) -> None:
    make_folder = partial(WeightFolder, tmp_path / "place", TOKENIZER)
    weights = ModelWeights(rig.model).take_snapshot(0, torch.float32, make_folder)
    folder = weights.folder
    assert (folder / "model.safetensors").exists()
    del weights
    assert not folder.exists()


def test_a_python_without_vllm_and_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vLLM is not installed in"):
        require_vllm(Path(sys.executable))
    with pytest.raises(UserError, match="is not a working Python interpreter"):
        require_vllm(tmp_path / "python")


def test_python_or_urls_must_be_given(rig: VllmRig) -> None:
    with pytest.raises(UserError, match=r"needs either engine\.python"):
        VllmEngine(rig.model, TOKENIZER, resources=rig.resources, max_num_seqs=8)
