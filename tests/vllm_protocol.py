"""Server with the protocol of vLLM, over a transformers model; for tests."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import AutoModelForCausalLM

from checkpoints import tiny_tokenizer
from fieldcraft.extensions.vllm.worker.fieldcraft_wire import (
    CHANNEL_ERRORS,
    BroadcastChannel,
    TensorMeta,
)

TOKENIZER = tiny_tokenizer()
SILENCE = 8.0  # seconds for one tensor


def _event(tokens: list[dict[str, Any]], **end: Any) -> str:
    """Return a chunk of a stream."""
    piece = {"token_ids": [t["token_id"] for t in tokens], "logprobs": {"content": tokens}}
    return f"data: {json.dumps({'choices': [{**piece, 'finish_reason': None, **end}]})}\n\n"


Handler = Callable[[Request], Awaitable[Response]]


@dataclass
class Fake:
    """State of the server, and its misbehaviour. `requests` are the requests to /generate."""

    model: Any
    version: str = "0.32.0"
    deaf: bool = False  # a reload changes nothing
    raw: bool = False  # log-probabilities before the temperature
    stalls_at: int | None = None  # tokens of the next turns, after which generation stalls
    late: bool = False  # the next turn arrives only once the server has paused
    busy: bool = False  # loading weights takes this long
    dies_after: int | None = None  # responses of /generate
    dies_at: str = ""  # a route that it never answers
    breaks_after: int | None = None  # tokens of the next stream, which then ends
    label: str = "default"
    seeds: bool = True
    max_len: int = 200
    requests: list[dict[str, Any]] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    resets: int = 0
    dropped: int = 0  # requests whose client disconnected
    stalled: int = 0  # turns so far
    pauses: int = 0  # so far
    paused: bool = False
    dead: bool = False
    channel: BroadcastChannel | None = None
    ports: list[int] = field(default_factory=list)  # ports at which it has met a trainer
    received: int = 0  # number of complete weight transfers
    leaves: bool = False  # it exits in the middle of the next weight transfer
    _coming: asyncio.Task[dict[str, torch.Tensor]] | None = None

    @property
    def app(self) -> Starlette:
        get_handlers = {
            "/health": self._health,
            "/version": self._version,
            "/weight_info": self._weights,
            "/v1/models": self._models,
        }
        post_handlers = {
            "/pause": self._pause,
            "/resume": self._resume,
            "/collective_rpc": self._call,
            "/init_weight_transfer_engine": self._expect,
            "/start_weight_update": self._start_update,
            "/update_weights": self._update,
            "/finish_weight_update": self._finish_update,
            "/update_weight_version": self._name,
            "/reset_prefix_cache": self._reset,
            "/inference/v1/generate": self._generate,
        }
        get = [Route(path, self._alive(path, handle)) for path, handle in get_handlers.items()]
        post = [
            Route(path, self._alive(path, handle), methods=["POST"])
            for path, handle in post_handlers.items()
        ]
        return Starlette(routes=get + post)

    def _alive(self, path: str, handle: Handler) -> Handler:
        """Wrap a route so that it fails once the server is dead."""

        async def answer(request: Request) -> Response:
            self.dead |= path == self.dies_at
            found = None if self.dead else await handle(request)
            if found is None or self.dead:  # it may have died in the meantime
                return JSONResponse({"error": {"message": "EngineCore died"}}, status_code=500)
            return found

        return answer

    async def _health(self, _: Request) -> Response:
        return Response()

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": self.version})

    async def _weights(self, _: Request) -> Response:
        return JSONResponse({"weight_version": self.label})

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": "policy", "max_model_len": self.max_len}]})

    async def _pause(self, request: Request) -> Response:
        """Return the turns in progress with their tokens; later turns wait."""
        assert request.query_params["mode"] == "abort"
        self.pauses += 1
        self.paused = True
        return JSONResponse({"status": "paused"})

    async def _resume(self, _: Request) -> Response:
        self.paused = False
        return JSONResponse({"status": "resumed"})

    async def _call(self, request: Request) -> Response:
        body = await request.json()
        if body["method"] == "fieldcraft_describe":
            config = self.model.config.to_dict()
            return JSONResponse({"results": [{"config": config, "seeds": self.seeds}]})
        if body["method"] == "fieldcraft_arrived":
            return JSONResponse({"results": [await self._arrived()]})
        assert body["method"] == "fieldcraft_load"
        (folder,) = body["args"]
        self.loads.append(folder)
        while self.busy and not await request.is_disconnected():
            await asyncio.sleep(0.01)
        if not self.deaf:
            self.model = AutoModelForCausalLM.from_pretrained(Path(folder)).eval()
        return JSONResponse({"results": [None]})

    async def _expect(self, request: Request) -> Response:
        """Receive weights like `BroadcastReceiver`."""
        info = (await request.json())["init_info"]
        if self.ports[-1:] != [info["port"]]:
            if self.channel is not None:
                self.channel.close()
            at = info["host"], info["port"], info["first"], info["size"]
            self.channel = BroadcastChannel(*at, torch.device("cpu"), SILENCE)
            self.ports.append(info["port"])
        assert self.channel is not None
        self._coming = asyncio.create_task(asyncio.to_thread(self._receive, info["forms"]))
        return JSONResponse({})

    def _receive(self, forms: list[TensorMeta]) -> dict[str, torch.Tensor]:
        assert self.channel is not None
        if self.leaves:
            self.channel.receive(forms[: len(forms) // 2])
            self.channel.close()
            self.dead = True
            raise RuntimeError("it has died")
        return self.channel.receive(forms)

    async def _arrived(self) -> str:
        assert self._coming is not None
        try:
            await self._coming
        except CHANNEL_ERRORS as error:
            return str(error)
        self.received += 1
        return ""

    async def _start_update(self, _: Request) -> Response:
        assert self.paused
        return JSONResponse({})

    async def _update(self, request: Request) -> Response:
        assert await request.json() == {"update_info": {}}
        assert self._coming is not None
        if not self.deaf:
            state = self.model.state_dict()
            for name, tensor in (await self._coming).items():
                state[name].copy_(tensor)
        return JSONResponse({})

    async def _finish_update(self, request: Request) -> Response:
        self.label = (await request.json())["weight_version"]
        return JSONResponse({})

    async def _name(self, request: Request) -> Response:
        self.label = (await request.json())["new_version"]
        return JSONResponse({"success": True})

    async def _reset(self, _: Request) -> Response:
        self.resets += 1
        return JSONResponse({"success": True})

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if self.dies_after is not None and len(self.requests) > self.dies_after:
            return JSONResponse({"error": {"message": "EngineCore died"}}, status_code=500)
        late, self.late = self.late, False
        while late and not (self.paused or await request.is_disconnected()):
            await asyncio.sleep(0.01)
        if body.get("stream"):
            return StreamingResponse(self._pieces(body), media_type="text/event-stream")
        answer = asyncio.create_task(self._answer(body["token_ids"], body["sampling_params"]))
        while not (answer.done() or self.dead):
            await asyncio.wait([answer], timeout=0.01)
            if await request.is_disconnected():
                self.dropped += 1
                break
        if not answer.done():
            answer.cancel()
            return Response()
        return JSONResponse(answer.result())

    async def _pieces(self, body: dict[str, Any]) -> AsyncIterator[str]:
        """Stream the chunks. The last one has the last token, if any, and the finish reason."""
        tokens = asyncio.Queue[dict[str, Any] | None]()
        coroutine = self._answer(body["token_ids"], body["sampling_params"], tokens.put_nowait)
        answer = asyncio.create_task(coroutine)
        answer.add_done_callback(lambda _: tokens.put_nowait(None))
        breaks_after, self.breaks_after = self.breaks_after, None
        count, held = 0, None
        try:
            while (token := await tokens.get()) is not None:
                if count == breaks_after:
                    return
                count += 1
                if held is not None:
                    yield _event([held])
                held = token
                if self.stalls_at is not None:  # like the real server, which holds nothing back
                    yield _event([held])
                    held = None
            (whole,) = answer.result()["choices"]
            end = {key: whole[key] for key in ("finish_reason", "stop_reason", "weight_versions")}
            yield _event([] if held is None else [held], **end)
            yield "data: [DONE]\n\n"
        finally:
            if not answer.done():
                self.dropped += 1
                answer.cancel()

    async def _answer(
        self,
        prompt: list[int],
        params: dict[str, Any],
        on_token: Callable[[dict[str, Any]], None] = lambda token: None,
    ) -> dict[str, Any]:
        """Answer greedily: the temperature only changes the log-probabilities."""
        began, stalls_at = self.pauses, self.stalls_at
        ids, logprobs, labels = list(prompt), list[float](), list[str]()
        reason, stop = "", None
        while not reason:
            await asyncio.sleep(0)
            if len(labels) == stalls_at and params["max_tokens"] > 1:  # never a proof
                self.stalled += 1
                while self.pauses == began:
                    await asyncio.sleep(0.01)
            while self.paused and self.pauses == began:
                await asyncio.sleep(0.01)
            if self.pauses > began:
                reason = "abort"
                break
            logits = self._logits(ids)[-1]
            scale = 1.0 if self.raw else params["temperature"] or 1.0
            ids.append(int(logits.argmax()))
            logprobs.append(float((logits / scale).log_softmax(-1)[ids[-1]]))
            labels.append(self.label)
            on_token({"token_id": ids[-1], "logprob": logprobs[-1]})
            text = TOKENIZER.decode(ids[len(prompt) :])
            if ids[-1] in params.get("stop_token_ids", []):
                reason, stop = "stop", ids[-1]
            elif found := [stop for stop in params.get("stop", []) if stop in text]:
                reason, stop = "stop", found[0]
            elif len(labels) == params["max_tokens"]:
                reason = "length"
        pairs = zip(ids[len(prompt) :], logprobs, strict=True)
        choice = {
            "token_ids": ids[len(prompt) :],
            "logprobs": {"content": [{"token_id": i, "logprob": x} for i, x in pairs]},
            "finish_reason": reason,
            "stop_reason": stop,
            "weight_versions": [{"version": label} for label, _ in groupby(labels)],
        }
        every = self._logits(prompt).log_softmax(-1)
        prompt_logprobs = [{i: {"logprob": float(every[k][i])}} for k, i in enumerate(prompt[1:])]
        return {"choices": [choice], "prompt_logprobs": [None, *prompt_logprobs]}

    @torch.no_grad()
    def _logits(self, ids: list[int]) -> torch.Tensor:
        """Return the logits [len(ids), V], computed without a cache."""
        logits: torch.Tensor = self.model(torch.tensor([ids])).logits[0]
        return logits
