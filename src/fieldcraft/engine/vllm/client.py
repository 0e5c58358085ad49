"""One server of vLLM: its routes, its words for what went wrong, and which weights it holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx
from pydantic import BaseModel, Field, ValidationError

from fieldcraft.engine.vllm.weights import PROBE_TEMPERATURE, Proof
from fieldcraft.tools.http import LimitedClient, close_with_the_loop
from fieldcraft.types import UserError

SUPPORTED = ("0.32.", "0.33.")
START = "start it as docs/many-gpus.md says"
FACTS = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings")
KEPT_SECONDS = 2  # that an idle connection is used again; the server closes it after 5
_SHOWN = 300  # characters of what a server says
M = TypeVar("M", bound=BaseModel)


class Gone(Exception):
    """Failure of a server that does not answer, or not with sense: it has died, or is about to."""


class Sampled(BaseModel):
    """One token of a completion."""

    token_id: int
    logprob: float


class _Logprobs(BaseModel):
    content: list[Sampled]


class _Span(BaseModel):
    version: str


class Choice(BaseModel):
    """A completion, or what there was of it when the server paused (`finish_reason` abort).
    `stop_reason` is a stop string, or the id of a token that ends a turn."""

    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: Literal["stop", "length", "abort", "error", "repetition"]
    stop_reason: int | str | None = None
    weight_versions: list[_Span] | None = None

    @property
    def labels(self) -> set[str]:
        """Labels of the weights that sampled it."""
        return {span.version for span in self.weight_versions or ()}


class _Piece(BaseModel):
    """The part that a stream adds to a completion; its last piece says why it ended, and has the
    spans."""

    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: list[_Span] | None = None


class _Pieces(BaseModel):
    choices: list[_Piece] = Field(min_length=1, max_length=1)


class _Answer(BaseModel):
    choices: list[Choice] = Field(min_length=1, max_length=1)
    prompt_logprobs: list[dict[int, dict[str, Any]] | None] | None = None


class _Described(BaseModel):
    config: dict[str, Any]
    seeds: bool


class _Models(BaseModel):
    class Model(BaseModel):
        id: str
        max_model_len: int

    data: list[Model] = Field(min_length=1)


class Server:
    """A server behind a url, from any event loop.

    `seeds` says whether its requests may have seeds and `max_len` how many tokens a session may
    have; `check` finds both out.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self.url = url.rstrip("/")
        self.timeout_seconds = timeout_seconds
        self.seeds = False
        self.max_len = 0
        self.holds: str | None = None  # label of the weights that it was given and that were proved
        self.brought: str | None = None  # label of those that have come, and wait to be loaded
        self._paused = False
        self._name = ""
        self._client: tuple[asyncio.AbstractEventLoop, LimitedClient] | None = None

    async def answers(self) -> None:
        """Raise Gone unless the server is ready."""
        await self._send("GET", "/health")

    async def check(self, config: Mapping[str, Any]) -> None:
        """Find out what the server is; `config` is that of the model in training.

        Raises UserError for another version of vLLM, a server without what is needed here, and one
        of another model.
        """
        version = (await self._send("GET", "/version")).json()["version"]
        if not version.startswith(SUPPORTED):
            raise UserError(
                f"{self.url} is a server of vLLM {version}, and only {versions()} are supported:"
                " start one of these."
            )
        described = _read(_Described, (await self._call("fieldcraft_describe"))[0])
        self.seeds = described.seeds
        for name in FACTS:
            here, there = config.get(name), described.config.get(name)
            if here != there:
                raise UserError(
                    f"{self.url} serves another model than the one in training, with {name} {there}"
                    f" instead of {here}: start it with this model."
                )
        model = _read(_Models, (await self._send("GET", "/v1/models")).json()).data[0]
        self._name, self.max_len = model.id, model.max_model_len

    async def remember(self) -> None:
        """Forget which weights the server holds, if it was started anew or somebody else gave it
        others. Raises Gone if it does not answer."""
        label = (await self._send("GET", "/weight_info")).json()["weight_version"]
        if label != self.holds:
            self.holds = None

    async def pause(self) -> None:
        """Cut short all completions that the server has been asked for. Those that it is asked for
        from now on wait."""
        self._paused = True
        await self._send("POST", "/pause?mode=abort")

    async def resume(self) -> None:
        """End a pause, whoever began it."""
        await self._send("POST", "/resume")
        self._paused = False

    async def load(self, folder: Path, label: str) -> None:
        """Take over the weights in a folder, under a label; nothing is kept of earlier caches.

        Raises UserError if the server cannot.
        """
        self.holds = None
        await self._call("fieldcraft_load", str(folder))
        await self.name_weights(label)

    async def expect(self, coming: Mapping[str, Any]) -> None:
        """Begin to receive what a trainer sends, and sample on; `coming` is for the worker's
        `Receiver`."""
        self.brought = None
        await self._send("POST", "/init_weight_transfer_engine", {"init_info": coming})

    async def arrived(self, label: str) -> str:
        """Return the reason why the weights with a label have not come, once that is known; empty
        if they have."""
        body = {"method": "fieldcraft_arrived", "args": ()}
        told: list[str] = (await self._send("POST", "/collective_rpc", body)).json()["results"]
        self.brought = None if any(told) else label
        return max(told)

    async def take_over(self) -> None:
        """Load the weights that have come; nothing is kept of earlier caches."""
        label, self.holds, self.brought = self.brought, None, None
        await self._send("POST", "/start_weight_update")
        await self._send("POST", "/update_weights", {"update_info": {}})
        await self._send("POST", "/finish_weight_update", {"weight_version": label})
        await self.forget()

    async def name_weights(self, label: str) -> None:
        """Label the weights: from now on completions bear the label, and have no caches from
        before."""
        await self._send("POST", "/update_weight_version", {"new_version": label})
        await self.forget()

    async def prove(self, proof: Proof, label: str) -> float:
        """Return the distance of the weights that the server holds from those of the proof, in
        nats."""
        sampling = {
            "max_tokens": 1,
            "temperature": PROBE_TEMPERATURE,
            "ignore_eos": True,
            "logprobs": 0,
            "prompt_logprobs": 0,
            "detokenize": False,
        }
        answer = await self._generate(proof.ids, sampling, label)
        told = answer.prompt_logprobs or []
        pairs = zip(proof.ids, told, strict=True)
        logprobs = [at[token]["logprob"] for token, at in pairs if at is not None]
        (sampled,) = answer.choices[0].logprobs.content
        return proof.gap(logprobs, sampled.token_id, sampled.logprob)

    async def sample(self, ids: Sequence[int], sampling: Mapping[str, Any], label: str) -> Choice:
        """Sample one completion, cut short if the server is paused. A caller that is cancelled
        closes the connection, and the server then drops the request. Raises Gone, and UserError for
        a request that it refuses."""
        return (await self._generate(ids, sampling, label)).choices[0]

    async def stream(
        self,
        ids: Sequence[int],
        sampling: Mapping[str, Any],
        label: str,
        tell: Callable[[Sequence[int]], None],
    ) -> Choice:
        """Sample one completion as `sample` does; `tell` is called with all tokens so far, as often
        as there are more."""
        tokens: list[int] = []
        logprobs: list[Sampled] = []
        last = None

        def hear(line: str) -> None:
            nonlocal last
            event = line.removeprefix("data: ")
            if event == line or event == "[DONE]":
                return
            if event.startswith('{"error"'):
                raise Gone(f"{self.url} gave up a request")
            (last,) = _read(_Pieces, json.loads(event)).choices
            tokens.extend(last.token_ids)
            logprobs.extend(last.logprobs.content)
            tell(tokens)

        body = self._wish(ids, sampling, label) | {"stream": True}
        await self._send("POST", "/inference/v1/generate", body, hear=hear)
        if last is None or last.finish_reason is None:
            raise Gone(f"{self.url} ended in the middle of an answer")
        whole = last.model_dump() | {"token_ids": tokens, "logprobs": {"content": logprobs}}
        return self._finished(_read(Choice, whole))

    async def forget(self) -> None:
        """Empty the prefix cache."""
        await self._send("POST", "/reset_prefix_cache")

    async def close(self) -> None:
        if self._client is not None:
            (loop, client), self._client = self._client, None
            if loop is asyncio.get_running_loop():
                await client.aclose()

    async def _generate(
        self, ids: Sequence[int], sampling: Mapping[str, Any], label: str
    ) -> _Answer:
        body = self._wish(ids, sampling, label)
        answer = _read(_Answer, (await self._send("POST", "/inference/v1/generate", body)).json())
        self._finished(answer.choices[0])
        return answer

    def _wish(self, ids: Sequence[int], sampling: Mapping[str, Any], label: str) -> dict[str, Any]:
        return {
            "model": self._name,
            "token_ids": list(ids),
            "sampling_params": dict(sampling),
            "cache_salt": label,  # even if a cache outlived its weights, no other would read it
        }

    def _finished(self, choice: Choice) -> Choice:
        """Return a completion. Raises Gone for one that the server did not want to finish."""
        reason = choice.finish_reason
        if reason == "error" or (reason == "abort" and not self._paused):
            raise Gone(f"{self.url} gave up a request")
        return choice

    async def _call(self, method: str, *args: str) -> list[Any]:
        """Call a method of the worker extension on every worker, and return its answers."""
        body = {"method": method, "args": args}
        response = await self._send("POST", "/collective_rpc", body, refusals=(500,))
        if response.status_code == HTTPStatus.OK:
            results: list[Any] = response.json()["results"]
            return results
        if method in response.text and "no attribute" in response.text:
            raise UserError(f"{self.url} runs without fieldcraft's worker extension: {START}.")
        raise UserError(f"{self.url} cannot take over the weights ({_told(response)}): {START}.")

    async def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        refusals: Sequence[int] = (),
        hear: Callable[[str], None] | None = None,
    ) -> httpx.Response:
        """Send a request, and return the answer of the route, if its status is 200 or one of
        `refusals`; with `hear` its lines are heard one by one."""
        client = await self._of_this_loop()
        try:
            if hear is None:
                response = await client.request(method, f"{self.url}{path}", json=body)
            else:
                response = await client.follow(method, f"{self.url}{path}", hear, json=body)
        except httpx.ReadTimeout as error:
            raise UserError(
                f"{self.url} did not answer within {self.timeout_seconds:g} s: raise"
                " engine.timeout_seconds, or look whether the server hangs."
            ) from error
        except httpx.RequestError as error:
            raise Gone(f"{self.url} cannot be reached ({type(error).__name__})") from error
        status = response.status_code
        if status == HTTPStatus.OK or status in refusals:
            return response
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            raise UserError(f"{self.url} has no route {path}: {START}.")
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise UserError(f"{self.url} refused {path} ({_told(response)}): {START}.")
        raise Gone(f"{self.url} answered with status {status} ({_told(response)})")

    async def _of_this_loop(self) -> LimitedClient:
        """Return the client of the running event loop: connections of a closed loop cannot be
        used."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            limits = httpx.Limits(max_connections=None, keepalive_expiry=KEPT_SECONDS)
            client = LimitedClient(self.timeout_seconds, limits=limits, trust_env=False)
            await close_with_the_loop(client)
            self._client = loop, client
        return self._client[1]


def versions() -> str:
    """Return the versions of vLLM that are supported."""
    return " and ".join(f"{version}x" for version in SUPPORTED)


def _told(response: httpx.Response) -> str:
    """Return what a server said, on one line."""
    try:
        text = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(str(text).split())[:_SHOWN].rstrip(".") or f"status {response.status_code}"


def _read(kind: type[M], found: Any) -> M:
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise UserError(
            f"vLLM's server answered with what is no {kind.__name__.strip('_').lower()} (at"
            f" {'.'.join(map(str, error.errors()[0]['loc']))}): use vLLM {versions()}."
        ) from error
