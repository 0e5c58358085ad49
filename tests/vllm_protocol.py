"""A server that speaks the protocol of vLLM, over a transformers model; for tests."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import AutoModelForCausalLM

from checkpoints import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


@dataclass
class Fake:
    """What the server holds, and how it misbehaves. `requests` are those of /generate."""

    model: Any
    version: str = "0.32.0"
    deaf: bool = False  # a reload changes nothing
    raw: bool = False  # log-probabilities before the temperature
    hangs: bool = False  # an answer never comes
    dies_after: int | None = None  # answers, of /generate
    label: str = "default"
    seeds: bool = True
    requests: list[dict[str, Any]] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    resets: int = 0
    dropped: int = 0  # requests whose client went away

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", lambda _: Response()),
                Route("/version", lambda _: JSONResponse({"version": self.version})),
                Route("/weight_info", lambda _: JSONResponse({"weight_version": self.label})),
                Route("/v1/models", self._models),
                Route("/collective_rpc", self._call, methods=["POST"]),
                Route("/update_weight_version", self._name, methods=["POST"]),
                Route("/reset_prefix_cache", self._reset, methods=["POST"]),
                Route("/inference/v1/generate", self._generate, methods=["POST"]),
            ]
        )

    def _models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": "policy", "max_model_len": 200}]})

    async def _call(self, request: Request) -> Response:
        body = await request.json()
        if body["method"] == "fieldcraft_describe":
            config = self.model.config.to_dict()
            return JSONResponse({"results": [{"config": config, "seeds": self.seeds}]})
        assert body["method"] == "fieldcraft_load"
        (folder,) = body["args"]
        self.loads.append(folder)
        if not self.deaf:
            self.model = AutoModelForCausalLM.from_pretrained(Path(folder)).eval()
        return JSONResponse({"results": [None]})

    async def _name(self, request: Request) -> Response:
        self.label = (await request.json())["new_version"]
        return JSONResponse({"success": True})

    async def _reset(self, _: Request) -> Response:
        self.resets += 1
        return JSONResponse({"success": True})

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if self.hangs:
            while not await request.is_disconnected():
                await asyncio.sleep(0.01)
            self.dropped += 1
            return Response()
        if self.dies_after is not None and len(self.requests) > self.dies_after:
            return JSONResponse({"error": {"message": "EngineCore died"}}, status_code=500)
        return JSONResponse(self._answer(body["token_ids"], body["sampling_params"]))

    @torch.no_grad()
    def _answer(self, prompt: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        """Greedy, whatever the temperature, which only changes the log-probabilities."""
        ids, logprobs, end = list(prompt), [], ("length", None)
        while len(ids) - len(prompt) < asked["max_tokens"] and end[0] == "length":
            logits = self.model(torch.tensor([ids])).logits[0, -1]
            scale = 1.0 if self.raw else asked["temperature"] or 1.0
            ids.append(int(logits.argmax()))
            logprobs.append(float((logits / scale).log_softmax(-1)[ids[-1]]))
            text = TOKENIZER.decode(ids[len(prompt) :])
            if ids[-1] in asked.get("stop_token_ids", []):
                end = ("stop", ids[-1])
            elif found := [stop for stop in asked.get("stop", []) if stop in text]:
                end = ("stop", found[0])
        turn = ids[len(prompt) :]
        every = self.model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        told = [{i: {"logprob": float(every[k][i])}} for k, i in enumerate(prompt[1:])]
        pairs = zip(turn, logprobs, strict=True)
        choice = {
            "token_ids": turn,
            "logprobs": {"content": [{"token_id": i, "logprob": x} for i, x in pairs]},
            "finish_reason": end[0],
            "stop_reason": end[1],
            "weight_versions": [{"version": self.label, "start": 0, "end": len(turn)}],
        }
        return {"choices": [choice], "prompt_logprobs": [None, *told]}
