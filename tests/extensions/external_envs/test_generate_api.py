"""The route /inference/v1/generate over an engine, as vLLM's clients call it."""

import asyncio
from typing import Any

import httpx
import pytest

from bandit import letters, small_model
from fieldcraft.engine.base import Engine
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.extensions.external_envs.generate_api import (
    GENERATE_PATH,
    GenerateHandler,
    GenerateRequest,
    create_generate_app,
)
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.tools.serving import serve_in_loop

TOKENIZER = letters()
IDS = TOKENIZER.encode("ab")


def handle_by(engine: Engine) -> GenerateHandler:
    """Return a handler that samples as a request says."""

    async def handle(request: GenerateRequest) -> Completion:
        params = request.sampling_params
        seed, most = params.seed or 0, params.max_tokens or 16
        stop = request.stop_strings(TOKENIZER)
        sampling = SamplingParams(most, params.temperature, stop, seed)
        return await engine.generate(request.token_ids, sampling, "s")

    return handle


def ask(engine: Engine, body: Any) -> httpx.Response:
    """Send one request to a server on the loopback interface."""

    async def once() -> httpx.Response:
        async with (
            serve_in_loop(create_generate_app(handle_by(engine))) as url,
            httpx.AsyncClient(timeout=600) as client,
        ):
            return await client.post(f"{url}{GENERATE_PATH}", json=body)

    return asyncio.run(once())


def test_ids_and_log_probabilities_are_those_of_the_engine() -> None:
    engine = LocalEngine(small_model(), TOKENIZER, max_num_seqs=4)
    params = {"max_tokens": 6, "temperature": 0.7, "seed": 5, "logprobs": 1}
    answer = ask(engine, {"model": "m", "token_ids": IDS, "sampling_params": params}).json()
    expected = asyncio.run(engine.generate(IDS, SamplingParams(6, 0.7, (), 5), "s"))
    [choice] = answer["choices"]
    assert choice["token_ids"] == expected.ids
    content = choice["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [f"token_id:{i}" for i in expected.ids]
    assert [entry["logprob"] for entry in content] == pytest.approx(expected.logprobs, abs=1e-6)


def test_an_answer_ends_with_its_token_a_string_or_its_length() -> None:
    def reason(**params: Any) -> tuple[str, str]:
        body = {"token_ids": IDS, "sampling_params": params}
        [choice] = ask(ScriptedEngine(TOKENIZER, ["0123"]), body).json()["choices"]
        return choice["finish_reason"], TOKENIZER.decode(choice["token_ids"])

    assert reason(max_tokens=9) == ("stop", "0123<end>")
    assert reason(max_tokens=9, stop=["2"]) == ("stop", "012")
    assert reason(max_tokens=9, stop="1") == ("stop", "01")
    three = TOKENIZER.convert_tokens_to_ids("3")
    assert reason(max_tokens=9, stop_token_ids=[0, three]) == ("stop", "0123")
    assert reason(max_tokens=2) == ("length", "01")
    neutral = {"logprobs": 1, "skip_special_tokens": False, "repetition_penalty": 1.0}
    assert reason(max_tokens=2, **neutral, min_tokens=0, logit_bias={}) == ("length", "01")
    nulls = dict.fromkeys(("temperature", "seed", "stop", "stop_token_ids", "n", "top_p", "top_k"))
    assert reason(max_tokens=2, **nulls) == ("length", "01")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"token_ids": []}, "'token_ids' is wrong"),
        ({"token_ids": ["a"]}, "'token_ids.0' is wrong: it must be a whole number"),
        ({"token_ids": [1], "sampling_params": {"top_p": 0.9}}, "'sampling_params.top_p' is wrong"),
        ({"token_ids": [1], "sampling_params": {"n": 2}}, "'sampling_params.n' is wrong"),
        ({"token_ids": [1], "sampling_params": {"logit_bias": {"5": 1}}}, "'logit_bias' is not"),
        ({"token_ids": [1], "sampling_params": {"frequency_penalty": 1}}, "'frequency_penalty' is"),
        ({"token_ids": [1], "sampling_params": {"min_tokens": 2}}, "'min_tokens' is not supported"),
        (
            {"token_ids": [1], "sampling_params": {"structured_outputs": {"regex": "a"}}},
            "constrained",
        ),
        (["?"], "is wrong"),
    ],
)
def test_what_cannot_be_answered_is_refused(body: Any, sentence: str) -> None:
    answer = ask(ScriptedEngine(TOKENIZER, ["0"]), body)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]["message"]
