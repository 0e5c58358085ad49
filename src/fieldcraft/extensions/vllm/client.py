"""Client of one vLLM server: routes, error messages, and the label of its weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx
from pydantic import BaseModel, Field, ValidationError

from fieldcraft.engine.weights import PROBE_TEMPERATURE, ProbeLogprobs
from fieldcraft.tools.http import LoopHttpClient
from fieldcraft.types import UserError

SUPPORTED_VERSIONS = ("0.32.", "0.33.")
START_ADVICE = "start it as described in docs/many-gpus.md"
MODEL_CONFIG_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "tie_word_embeddings",
)
KEEPALIVE_SECONDS = 2  # reuse limit of an idle connection; the server closes it after 5
_MAX_MESSAGE_CHARACTERS = 300  # characters of a server's message
M = TypeVar("M", bound=BaseModel)


class ServerLostError(Exception):
    """Failure of a server that does not respond, or responds with errors, because it has crashed or
    is about to."""


class TokenLogprob(BaseModel):
    """Token of a completion, with its log-probability."""

    token_id: int
    logprob: float


class _Logprobs(BaseModel):
    content: list[TokenLogprob]


class _WeightSpan(BaseModel):
    version: str


class CompletionChoice(BaseModel):
    """Completion, possibly cut short when the server paused (`finish_reason` abort). `stop_reason`
    is a stop string, or the id of a turn-end token."""

    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: Literal["stop", "length", "abort", "error", "repetition"]
    stop_reason: int | str | None = None
    weight_versions: list[_WeightSpan] | None = None

    @property
    def weight_labels(self) -> set[str]:
        """Labels of the weights that sampled the completion."""
        return {span.version for span in self.weight_versions or ()}


class _ChunkChoice(BaseModel):
    """Increment of a streamed completion; the last one has the finish reason and the weight
    versions."""

    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: list[_WeightSpan] | None = None


class _Chunk(BaseModel):
    choices: list[_ChunkChoice] = Field(min_length=1, max_length=1)


class _Answer(BaseModel):
    choices: list[CompletionChoice] = Field(min_length=1, max_length=1)
    prompt_logprobs: list[dict[int, dict[str, Any]] | None] | None = None


class _Description(BaseModel):
    config: dict[str, Any]
    seeds: bool


class _Models(BaseModel):
    class Model(BaseModel):
        id: str
        max_model_len: int

    data: list[Model] = Field(min_length=1)


class VllmClient:
    """Client of the server at a URL, usable from any event loop.

    `supports_seeds` is True if requests may have seeds, and `max_len` is the maximum number of
    tokens of a session; `require_compatible` sets both.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self.url = url.rstrip("/")
        self.timeout_seconds = timeout_seconds
        self.supports_seeds = False
        self.max_len = 0
        self.loaded_label: str | None = None  # label of the loaded weights, verified by the probe
        self.has_responded = False  # whether a request for a session has succeeded
        self.received_label: str | None = None  # label of received weights that are not loaded yet
        self._paused = False
        self._name = ""
        limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEPALIVE_SECONDS)
        self._http = LoopHttpClient(timeout_seconds, limits=limits, trust_env=False)

    async def check_health(self) -> None:
        """Raise ServerLostError unless the server is ready."""
        await self._send("GET", "/health")

    async def require_compatible(self, config: Mapping[str, Any]) -> None:
        """Query the server's properties; `config` is the configuration of the model in training.

        Raises UserError for an unsupported vLLM version, a missing worker extension, or a different
        model.
        """
        version = (await self._send("GET", "/version")).json()["version"]
        if not version.startswith(SUPPORTED_VERSIONS):
            raise UserError(
                f"{self.url} runs vLLM {version}, but only {describe_supported_versions()} are"
                " supported: start a supported version."
            )
        description = _validate(_Description, (await self._call_workers("fieldcraft_describe"))[0])
        self.supports_seeds = description.seeds
        for name in MODEL_CONFIG_KEYS:
            expected, actual = config.get(name), description.config.get(name)
            if expected != actual:
                raise UserError(
                    f"{self.url} serves a different model than the one being trained ({name} is"
                    f" {actual}, expected {expected}): start it with the trained model."
                )
        model = _validate(_Models, (await self._send("GET", "/v1/models")).json()).data[0]
        self._name, self.max_len = model.id, model.max_model_len

    async def refresh_loaded_label(self) -> None:
        """Reset `loaded_label` if the server was restarted or another client has changed its
        weights. Raises ServerLostError if the server does not respond."""
        label = (await self._send("GET", "/weight_info")).json()["weight_version"]
        if label != self.loaded_label:
            self.loaded_label = None

    async def pause(self) -> None:
        """Cut short all running completions. Later requests wait."""
        self._paused = True
        await self._send("POST", "/pause?mode=abort")

    async def resume(self) -> None:
        """End a pause, regardless of who started it."""
        await self._send("POST", "/resume")
        self._paused = False

    async def load(self, folder: Path, label: str) -> None:
        """Load the weights in a folder under a label, and clear the caches.

        Raises UserError if the server cannot load them.
        """
        self.loaded_label = None
        await self._call_workers("fieldcraft_load", str(folder))
        await self.set_weight_label(label)

    async def begin_receive(self, init_info: Mapping[str, Any]) -> None:
        """Start receiving weights from a trainer while sampling continues; `init_info` is passed to
        the worker's `BroadcastReceiver`."""
        self.received_label = None
        await self._send("POST", "/init_weight_transfer_engine", {"init_info": init_info})

    async def finish_receive(self, label: str) -> str:
        """Wait for the weights with a label. Returns the reason if they were not received, else an
        empty string."""
        body = {"method": "fieldcraft_arrived", "args": ()}
        errors: list[str] = (await self._send("POST", "/collective_rpc", body)).json()["results"]
        self.received_label = None if any(errors) else label
        return max(errors)

    async def apply_received(self) -> None:
        """Load the received weights, and clear the caches."""
        label, self.loaded_label, self.received_label = self.received_label, None, None
        await self._send("POST", "/start_weight_update")
        await self._send("POST", "/update_weights", {"update_info": {}})
        await self._send("POST", "/finish_weight_update", {"weight_version": label})
        await self.reset_prefix_cache()

    async def set_weight_label(self, label: str) -> None:
        """Label the weights and clear the caches. Completions have this label from now on."""
        await self._send("POST", "/update_weight_version", {"new_version": label})
        await self.reset_prefix_cache()

    async def compare_probe(self, probe: ProbeLogprobs, label: str) -> float:
        """Return the difference between the probe under the server's weights and `probe`, in
        nats."""
        sampling = {
            "max_tokens": 1,
            "temperature": PROBE_TEMPERATURE,
            "ignore_eos": True,
            "logprobs": 0,
            "prompt_logprobs": 0,
            "detokenize": False,
        }
        answer = await self._generate(probe.ids, sampling, label)
        prompt_logprobs = answer.prompt_logprobs or []
        pairs = zip(probe.ids, prompt_logprobs, strict=True)
        logprobs = [entry[token]["logprob"] for token, entry in pairs if entry is not None]
        (sampled,) = answer.choices[0].logprobs.content
        return probe.reply_difference(logprobs, sampled.token_id, sampled.logprob)

    async def sample(
        self, ids: Sequence[int], sampling: Mapping[str, Any], label: str
    ) -> CompletionChoice:
        """Sample one completion, cut short if the server is paused. Cancelling the caller closes
        the connection, and the server then drops the request. Raises ServerLostError if the server
        fails, and UserError if it refuses the request."""
        return (await self._generate(ids, sampling, label)).choices[0]

    async def stream(
        self,
        ids: Sequence[int],
        sampling: Mapping[str, Any],
        label: str,
        on_tokens: Callable[[Sequence[int]], None],
    ) -> CompletionChoice:
        """Sample one completion as `sample` does; `on_tokens` is called with all tokens so far
        whenever new ones arrive."""
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        last = None

        def read_line(line: str) -> None:
            nonlocal last
            event = line.removeprefix("data: ")
            if event == line or event == "[DONE]":
                return
            if event.startswith('{"error"'):
                raise ServerLostError(f"{self.url} aborted a request")
            (last,) = _validate(_Chunk, json.loads(event)).choices
            tokens.extend(last.token_ids)
            logprobs.extend(last.logprobs.content)
            on_tokens(tokens)

        body = self._request_body(ids, sampling, label) | {"stream": True}
        await self._send("POST", "/inference/v1/generate", body, on_line=read_line)
        if last is None or last.finish_reason is None:
            raise ServerLostError(f"{self.url} closed the stream before the completion ended")
        completion = last.model_dump() | {"token_ids": tokens, "logprobs": {"content": logprobs}}
        return self._require_finished(_validate(CompletionChoice, completion))

    async def reset_prefix_cache(self) -> None:
        """Clear the prefix cache."""
        await self._send("POST", "/reset_prefix_cache")

    async def close(self) -> None:
        await self._http.close()

    async def _generate(
        self, ids: Sequence[int], sampling: Mapping[str, Any], label: str
    ) -> _Answer:
        body = self._request_body(ids, sampling, label)
        answer = _validate(
            _Answer, (await self._send("POST", "/inference/v1/generate", body)).json()
        )
        self._require_finished(answer.choices[0])
        return answer

    def _request_body(
        self, ids: Sequence[int], sampling: Mapping[str, Any], label: str
    ) -> dict[str, Any]:
        return {
            "model": self._name,
            "token_ids": list(ids),
            "sampling_params": dict(sampling),
            "cache_salt": label,  # a cache that outlives its weights cannot be matched
        }

    def _require_finished(self, choice: CompletionChoice) -> CompletionChoice:
        """Return a completion. Raises ServerLostError if the server aborted it."""
        reason = choice.finish_reason
        if reason == "error" or (reason == "abort" and not self._paused):
            raise ServerLostError(f"{self.url} aborted a request")
        return choice

    async def _call_workers(self, method: str, *args: str) -> list[Any]:
        """Call a method of the worker extension on every worker, and return the results."""
        body = {"method": method, "args": args}
        response = await self._send("POST", "/collective_rpc", body, accepted_statuses=(500,))
        if response.status_code == HTTPStatus.OK:
            results: list[Any] = response.json()["results"]
            return results
        if method in response.text and "no attribute" in response.text:
            raise UserError(
                f"{self.url} runs without fieldcraft's worker extension: {START_ADVICE}."
            )
        raise UserError(
            f"{self.url} could not load the weights ({_server_message(response)}): {START_ADVICE}."
        )

    async def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        accepted_statuses: Sequence[int] = (),
        on_line: Callable[[str], None] | None = None,
    ) -> httpx.Response:
        """Send a request and return the response if its status is 200 or one of
        `accepted_statuses`; with `on_line`, response lines are passed to it one by one."""
        client = await self._http.get()
        try:
            if on_line is None:
                response = await client.request(method, f"{self.url}{path}", json=body)
            else:
                response = await client.stream_lines(
                    method, f"{self.url}{path}", on_line, json=body
                )
        except httpx.ReadTimeout as error:
            raise UserError(
                f"{self.url} did not respond within {self.timeout_seconds:g} s: raise"
                " engine.timeout_seconds, or check whether the server hangs."
            ) from error
        except httpx.RequestError as error:
            raise ServerLostError(
                f"{self.url} cannot be reached ({type(error).__name__})"
            ) from error
        status = response.status_code
        if status == HTTPStatus.OK or status in accepted_statuses:
            return response
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            raise UserError(f"{self.url} has no route {path}: {START_ADVICE}.")
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise UserError(
                f"{self.url} refused {path} ({_server_message(response)}): {START_ADVICE}."
            )
        raise ServerLostError(
            f"{self.url} answered with status {status} ({_server_message(response)})"
        )


def describe_supported_versions() -> str:
    """Return the supported versions of vLLM as text."""
    return " and ".join(f"{version}x" for version in SUPPORTED_VERSIONS)


def _server_message(response: httpx.Response) -> str:
    """Return the server's message on one line."""
    try:
        text = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = response.text
    return (
        " ".join(str(text).split())[:_MAX_MESSAGE_CHARACTERS].rstrip(".")
        or f"status {response.status_code}"
    )


def _validate(model_type: type[M], data: Any) -> M:
    try:
        return model_type.model_validate(data)
    except ValidationError as error:
        raise UserError(
            "the vLLM server returned an invalid response (at"
            f" {'.'.join(map(str, error.errors()[0]['loc']))}): use vLLM "
            f"{describe_supported_versions()}."
        ) from error
