"""Remote models behind an OpenAI-compatible chat endpoint: teachers and judges. Text only.

The official client implements retries, exponential backoff and Retry-After. Replies can be cached
on disk, so that a resumed run does not pay twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

import httpx
from pydantic import BaseModel, Field, ValidationError

from fieldcraft.concurrency import ConcurrencyLimiter
from fieldcraft.config.collection import is_openai_url
from fieldcraft.config.names import replace_lone_surrogates
from fieldcraft.config.sections import EndpointConfig
from fieldcraft.config.url_secrets import mask_secrets
from fieldcraft.records.waits import report_wait
from fieldcraft.sampling import NO_TRUNCATION, Truncation
from fieldcraft.tools.http import (
    LoopHttpClient,
    ResponseTooLargeError,
    read_address,
    read_key,
)
from fieldcraft.tools.reply_cache import ReplyCache
from fieldcraft.tools.threads import run_in_thread
from fieldcraft.types import UserError

if TYPE_CHECKING:
    from openai import APIError

_MAX_CHECK_TOKENS = 16  # reasoning models reject a much lower limit
_MAX_REASON_CHARACTERS = 300  # of a server's error message


class ChatRequestError(Exception):
    """A request failed after all attempts; the message contains the reason."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens and their cost in the currency of the prices; the cost is None without prices."""

    prompt_tokens: int
    completion_tokens: int
    cost: float | None

    def __add__(self, other: TokenUsage) -> TokenUsage:
        has_costs = self.cost is not None and other.cost is not None
        return TokenUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            cast(float, self.cost) + cast(float, other.cost) if has_costs else None,
        )


def price_tokens(
    prompt_tokens: int, completion_tokens: int, prices: tuple[float, float] | None
) -> TokenUsage:
    """Return the usage of tokens at prices per million prompt and completion tokens."""
    cost = None
    if prices is not None:
        cost = (prompt_tokens * prices[0] + completion_tokens * prices[1]) / 1e6
    return TokenUsage(prompt_tokens, completion_tokens, cost)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """Text that a model wrote. `reasoning` is "" if the endpoint does not return it;
    `finish_reason` is reported by the endpoint, usually "stop" or "length"."""

    text: str
    reasoning: str
    finish_reason: str
    usage: TokenUsage


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None  # DeepSeek, older vLLM
    reasoning: str | None = None  # OpenRouter, newer vLLM


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _UsageCounts(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _ResponseBody(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _UsageCounts | None = None


class ChatClient:
    """Client of a model behind a URL, usable from any event loop.

    `usage` is the total usage paid by this process in `requests` requests, which took `seconds` in
    sum; replies from the cache are free and counted in `cached_replies`.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        concurrency: int = 8,
        timeout_seconds: float = 60,
        retries: int = 5,
        prices: tuple[float, float] | None = None,
        cache: Path | None = None,
    ) -> None:
        """Create a client of an endpoint.

        Args:
            url: URL of the endpoint up to its version, such as http://127.0.0.1:8000/v1.
            model: name of the model at the endpoint.
            api_key_env: environment variable with the key; optional for servers without keys.
            concurrency: maximum number of concurrent requests.
            timeout_seconds: time of each attempt, from connecting to the end of the response.
            retries: attempts after the first.
            prices: prices of a million prompt tokens and of a million completion tokens.
            cache: file that stores every reply. The same request then returns the same reply, so
                different samples need different seeds.

        Raises:
            UserError: an invalid URL, key or number, a file that is not a cache, or `openai` is
                not installed.
        """
        if concurrency < 1 or timeout_seconds <= 0 or retries < 0:
            raise UserError(
                "An endpoint needs concurrency >= 1, timeout_seconds > 0 and retries >= 0, not"
                f" concurrency={concurrency}, timeout_seconds={timeout_seconds} and"
                f" retries={retries}."
            )
        self._library = _import_openai()
        self.url, self.model = _normalise_url(url), model
        self._key_env, self._key = api_key_env, read_key(api_key_env)
        self._limiter = ConcurrencyLimiter(concurrency)
        self._http = LoopHttpClient(
            timeout_seconds,
            follow_redirects=True,  # as in the official client
            limits=httpx.Limits(max_connections=None),  # the limiter is the limit
        )
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._prices = prices
        self._reply_cache = None if cache is None else ReplyCache(cache)
        self._request_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.usage = self._make_usage(_UsageCounts())
        self.cached_replies = 0
        self.requests = 0
        self.seconds = 0.0

    async def chat(
        self,
        messages: list[dict[str, str]],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        truncation: Truncation = NO_TRUNCATION,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> ChatReply:
        """Request the model's next message and return it, from the cache if the same request was
        made before.

        Raises:
            ChatRequestError: no usable response after all attempts.
            UserError: the cache cannot be read or written.
        """
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {key: replace_lone_surrogates(text) for key, text in message.items()}
                for message in messages
            ],
            "temperature": temperature,
            # OpenAI rejects the old name for its newer models; other servers support only the old.
            self._max_tokens_key: max_tokens,
        }
        request |= self._truncation_params(truncation)
        request |= {"stop": list(stop)} if stop else {}
        request |= {} if seed is None else {"seed": seed}
        if self._reply_cache is None:
            return self._make_reply(await self._request(request))
        key = hashlib.sha256(json.dumps([self.url, request], sort_keys=True).encode()).hexdigest()
        # Concurrent identical requests wait for the reply of the first one.
        async with self._request_locks.setdefault(key, asyncio.Lock()):
            stored = await run_in_thread(partial(self._reply_cache.find, key))
            if stored is None:
                body = await self._request(request)
                await run_in_thread(partial(self._reply_cache.add, key, body.model_dump_json()))
            else:
                body = _ResponseBody.model_validate_json(stored)
                self.cached_replies += 1
        return self._make_reply(body)

    async def require_available(self, truncation: Truncation = NO_TRUNCATION) -> None:
        """Request a few tokens from the model, so that a run does not start without it.

        Raises:
            UserError: the server is down, the key is missing or rejected, or the model is unknown
                or does not support these limits.
        """
        request = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Say ok."}],
            self._max_tokens_key: _MAX_CHECK_TOKENS,
            **self._truncation_params(truncation),
        }
        try:
            await self._request(request, retries=min(self._retries, 1))
        except ChatRequestError as error:
            raise UserError(
                f"The model '{self.model}' does not answer at {self.url}: {error}."
            ) from None

    async def close(self) -> None:
        """Close the connections in the running loop; the next request opens new ones."""
        await self._http.close()

    def _truncation_params(self, truncation: Truncation) -> dict[str, Any]:
        """Return the keys of a request that truncate sampling. top_k and min_p are supported by
        servers of open models (vLLM, SGLang, llama.cpp). Raises UserError for OpenAI's models."""
        extensions = {"top_k": truncation.top_k, "min_p": truncation.min_p}
        extra_body = {key: value for key, value in extensions.items() if value}
        if extra_body and is_openai_url(self.url):
            raise UserError("OpenAI's models do not support top_k and min_p: remove them.")
        params = {"top_p": truncation.top_p} if truncation.top_p < 1 else {}
        return params | ({"extra_body": extra_body} if extra_body else {})

    @property
    def _max_tokens_key(self) -> str:
        return "max_completion_tokens" if is_openai_url(self.url) else "max_tokens"

    async def _request(self, request: dict[str, Any], retries: int | None = None) -> _ResponseBody:
        with report_wait(f"a request to {self.model}", self.url):
            return await self._send_request(request, retries)

    async def _send_request(self, request: dict[str, Any], retries: int | None) -> _ResponseBody:
        openai = self._library
        client = openai.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self.url,
            timeout=self._timeout_seconds,
            max_retries=self._retries if retries is None else retries,
            http_client=await self._http.get(),
        )
        async with self._limiter.slot():
            started = time.perf_counter()
            try:
                # The client itself accepts any JSON as a response, so it is validated here.
                raw = await client.chat.completions.with_raw_response.create(**request)
                body = _ResponseBody.model_validate_json(raw.content)
            except openai.APIError as error:
                # The original error may contain the key, so it is not chained.
                raise ChatRequestError(self._describe_error(error)) from None
            except ValidationError:
                message = self._clean_message(raw.text)
                raise ChatRequestError(
                    f"the response is not a chat completion ({message})"
                ) from None
            finally:
                self.requests += 1
                self.seconds += time.perf_counter() - started
        self.usage += self._make_usage(body.usage or _UsageCounts())
        return body

    def _describe_error(self, error: APIError) -> str:
        openai = self._library
        if isinstance(error, openai.APITimeoutError):
            return f"no answer within {self._timeout_seconds:g} s"
        if isinstance(error.__cause__, ResponseTooLargeError):
            return "the answer is too large"
        if not isinstance(error, openai.APIStatusError):
            return "the server cannot be reached"
        message = self._clean_message(error.response.text)
        if error.status_code in (401, 403):
            state = "is refused" if self._key else "is not set"
            return f"the key in the environment variable {self._key_env} {state} ({message})"
        if error.status_code == 404:
            return f"the model or the url is unknown there ({message})"
        return f"status {error.status_code} ({message})"

    def _clean_message(self, text: str) -> str:
        """Return a server's message on one line, shortened, and without the key."""
        hidden = text.replace(self._key, "***") if self._key else text
        return " ".join(hidden.split())[:_MAX_REASON_CHARACTERS] or "no message"

    def _make_reply(self, body: _ResponseBody) -> ChatReply:
        choice = body.choices[0]
        message = choice.message
        return ChatReply(
            text=message.content or "",
            reasoning=message.reasoning_content or message.reasoning or "",
            finish_reason=choice.finish_reason or "",
            usage=self._make_usage(body.usage or _UsageCounts()),
        )

    def _make_usage(self, tokens: _UsageCounts) -> TokenUsage:
        return price_tokens(tokens.prompt_tokens, tokens.completion_tokens, self._prices)


async def open_chat_client(settings: EndpointConfig, cache: Path | None) -> ChatClient:
    """Open a client of a remote model and check that it responds; `cache` stores its replies.

    Raises UserError if it does not respond.
    """
    client = ChatClient(settings.url, settings.model, api_key_env=settings.api_key_env, cache=cache)
    await client.require_available()
    return client


def _import_openai() -> ModuleType:
    try:
        import openai
    except ImportError as error:
        raise UserError(
            "Remote models need the package openai: pip install 'fieldcraft[openai]'."
        ) from error
    return openai


def _normalise_url(url: str) -> str:
    """Return the URL without the path that the client adds. A URL with a secret is rejected,
    because it would be written to files."""
    address = read_address(url)
    if address.scheme not in ("http", "https") or not address.host:
        display_url = mask_secrets(url)
        raise UserError(f"'{display_url}' is not an endpoint URL; write http://HOST:PORT/v1.")
    if address.userinfo or address.query:
        raise UserError(
            f"The url of {address.host} must not contain a user, password or query: put the"
            " key into an environment variable."
        )
    return url.rstrip("/").removesuffix("/chat/completions")
