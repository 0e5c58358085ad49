"""vLLM engine: samples from vLLM servers that receive their weights from the trainer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.local.requests import (
    StopStringMatcher,
    append_version_span,
    find_model_turn_end,
)
from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.sizes import resolve_session_tokens
from fieldcraft.engine.weights import (
    ModelWeights,
    WeightSnapshot,
    WeightSource,
    choose_exchange_folder,
)
from fieldcraft.extensions.vllm import DEFAULT_KV_CACHE_GB
from fieldcraft.extensions.vllm.client import CompletionChoice, ServerLostError
from fieldcraft.extensions.vllm.process import LocalLauncher, VllmServerSettings
from fieldcraft.extensions.vllm.servers import (
    MAX_CONSECUTIVE_FAILURES,
    AttachedServerPool,
    LaunchedServerPool,
    VllmServerPool,
)
from fieldcraft.sampling import Completion, SamplingParams, StopReason, VersionSpan
from fieldcraft.types import Tokenizer, UserError

OnTokens = Callable[[Sequence[int]], None]
PositiveNumber = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
PoolFactory = Callable[[Path, Path | None, VllmServerSettings, RunResources], VllmServerPool]
# Maximum difference in nats between log-probabilities of the same weights in trainer and server. In
# bfloat16, the summation order alone causes differences of this size.
PROBE_TOLERANCE_NATS = {"float32": 1e-4, "bfloat16": 0.1}
NON_FINITE_LOGPROB = -9999.0  # vLLM's value for a log-probability that is not a number


class VllmEngine:
    """Engine that samples from vLLM with the weights of a model in this process; implements
    `engine.base.PolicyEngine`.

    It uses the servers at `urls`, or starts one with `python`, the interpreter of an environment
    that has vLLM. The servers hold the weights of the last `update_weights`; a probe verifies them
    after every change. Before the first update, they hold the weights at the time of the first
    `generate` or `snapshot_weights`. The model is not read at any other time, so another thread may
    train it.

    Args:
        model: transformers causal language model.
        tokenizer: tokenizer of the model.
        resources: resources of the run, whose engines share the servers.
        max_num_seqs: maximum number of concurrently sampled sessions.
        threads: CPU threads of a server that is started here.
        python: interpreter of the server that is started here.
        urls: addresses of running servers, such as http://127.0.0.1:8000.
        kv_cache_gb: GiB of key-value cache of a server that is started here.
        max_model_len: maximum number of tokens of a session, for a server that is started here;
            `max_position_embeddings` of the model if None.
        dtype: compute dtype of the model, and of a server that is started here.
        weight_folder: folder for the exchange of weights, which must be accessible to the servers.
            None: shared memory for a server that is started here, and the run folder for others.
        probe_tolerance: maximum difference in nats between log-probabilities of server and model;
            None: 1e-4 in float32, 0.1 in bfloat16.
        timeout_seconds: timeout of a response, and of the start of a server.
        source: source of the weights if the model is not in this process; `model` then has none.
        pool_factory: factory of the pool of servers that are started on other machines.

    Raises:
        UserError: neither or both of `python` and `urls`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        resources: RunResources,
        max_num_seqs: int,
        threads: int | None = None,
        python: Path | None = None,
        urls: tuple[str, ...] = (),
        kv_cache_gb: PositiveNumber = DEFAULT_KV_CACHE_GB,
        max_model_len: Count | None = None,
        dtype: Dtype = "float32",
        weight_folder: Path | None = None,
        probe_tolerance: PositiveNumber | None = None,
        timeout_seconds: PositiveNumber = 1800.0,
        source: WeightSource | None = None,
        pool_factory: PoolFactory | None = None,
    ) -> None:
        if (python is None) == (not urls):
            raise UserError(
                "engine=vllm needs either engine.python, the interpreter of an environment that has"
                " vLLM, or engine.urls, the addresses of servers: set one of them."
            )
        settings = VllmServerSettings(
            max_num_seqs=max_num_seqs,
            threads=threads if model.device.type != "cuda" else None,
            kv_cache_gb=kv_cache_gb,
            max_model_len=resolve_session_tokens(model.config.get_text_config(), max_model_len),
            dtype=dtype,
            probe_tolerance=probe_tolerance or PROBE_TOLERANCE_NATS[dtype],
            timeout_seconds=timeout_seconds,
        )

        def make_pool() -> VllmServerPool:
            if python is not None and pool_factory is not None:
                return pool_factory(python, weight_folder, settings, resources)
            if python is None:
                return AttachedServerPool(urls, weight_folder, settings, resources)
            parent = weight_folder or choose_exchange_folder(model, resources.folder)
            launcher = LocalLauncher(python, parent, resources.folder / "vllm.log")
            return LaunchedServerPool(launcher, settings, resources)

        self.model = model
        self.tokenizer = tokenizer
        self.config = model.config.get_text_config()
        self.version = 0
        self.last_update_metrics: dict[str, float] = {}  # duration and size of the last publish
        self._source = source or ModelWeights(model)
        self._pool = resources.get_or_create("vllm", make_pool)
        self._stop_matcher = StopStringMatcher(tokenizer, self.config.vocab_size)
        self._turn_end_ids = sorted(find_model_turn_end(model, tokenizer).ids)
        self._snapshot: WeightSnapshot | None = None
        self._calls: dict[str, asyncio.Task[Completion]] = {}

    async def require_usable(self) -> None:
        """Raise UserError if the Python environment has no vLLM, or if a running server cannot be
        used."""
        await self._pool.require_usable(self.config.to_dict())

    @property
    def max_len(self) -> int:
        """Maximum number of tokens of a session: the servers' limit, once they hold weights."""
        return self._pool.max_len or resolve_session_tokens(self.config, None)

    @property
    def num_sessions(self) -> int:
        """Number of sessions that are generating; servers evict the others automatically."""
        return len(self._calls)

    async def generate(
        self,
        ids: Sequence[int],
        sampling: SamplingParams,
        session: str,
        on_token: Callable[[int], None] | None = None,
    ) -> Completion:
        """Continue `ids` until an end-of-sequence token, a stop string or `max_tokens`.

        Of earlier turns, the server recomputes only the last incomplete block. If a server fails,
        the turn is sampled again, by another server or after a restart. If the weights change, the
        turn continues with the new ones. `on_token` is called once for each token of the turn, as
        soon as it is sampled.

        Raises:
            UserError: `ids` leave no room below `max_len`, no server is running, or a server has
                unexpected weights.
            FloatingPointError: the model's logits were not finite.
            RuntimeError: the session is already generating.
        """
        if sampling.max_tokens < 1 or sampling.temperature < 0:
            raise ValueError(f"max_tokens must be positive, temperature not negative: {sampling}")
        if "" in sampling.stop:
            raise ValueError("a stop string must not be empty")
        if ids and not 0 <= min(ids) <= max(ids) < self.config.vocab_size:
            raise ValueError(f"a token id is outside the vocabulary: {list(ids)}")
        if session in self._calls:
            raise RuntimeError(f"session {session!r} is already generating")
        forwarder = None if on_token is None else _TokenForwarder(on_token)
        call = asyncio.create_task(self._generate(list(ids), sampling, session, forwarder))
        self._calls[session] = call
        try:
            return await call
        finally:
            del self._calls[session]

    def release(self, session: str) -> None:
        """Cancel a pending call; the server evicts a session automatically when it needs memory."""
        if session in self._calls:
            self._calls[session].cancel()

    async def sleep(self) -> None:
        """Clear the prefix caches of the servers. Raises RuntimeError while calls are
        generating."""
        if self._calls:
            raise RuntimeError("the engine cannot sleep while it is generating")
        await self._pool.reset_prefix_caches()

    async def snapshot_weights(self) -> None:
        """Publish the current weights if none have been published yet."""
        self.get_latest_snapshot()

    async def update_weights(self, version: int) -> None:
        """Send the model's current weights to the servers, and verify that they sample with them.
        Unfinished turns keep their tokens and continue with the new weights.

        Raises UserError if the servers do not sample with these weights.
        """
        clock = asyncio.get_running_loop().time
        start_time = clock()
        # In a thread, so that sessions continue concurrently.
        snapshot = await asyncio.to_thread(
            self._pool.take_snapshot, self._source, self.tokenizer, version
        )
        await self._pool.distribute(snapshot)
        self._snapshot, self.version = snapshot, version
        async for attempt in _make_attempts():
            with attempt:
                await self._sync_weights()
        self.last_update_metrics = {
            "publish_seconds": clock() - start_time,
            "publish_bytes": float(snapshot.nbytes),
        }

    def get_latest_snapshot(self) -> WeightSnapshot:
        """Return the last published weights, or publish the current ones if there are none."""
        if self._snapshot is None:
            self._snapshot = self._pool.take_snapshot(self._source, self.tokenizer, self.version)
        return self._snapshot

    async def _sync_weights(self) -> WeightSnapshot:
        """Load this engine's weights on all servers that have different ones, and return them."""
        return await self._pool.sync(self, self.config.to_dict())

    async def _generate(
        self,
        ids: list[int],
        sampling: SamplingParams,
        session: str,
        forwarder: _TokenForwarder | None,
    ) -> Completion:
        """Sample a turn, usually in one request. If the weights change, the request is cut short,
        and another one continues the turn. vLLM decodes a turn together with its prompt, so it may
        find a stop string that starts in the prompt; then the turn is continued as well."""
        version_spans: list[VersionSpan] = []
        turn: list[int] = []
        logprobs: list[float] = []
        max_tokens = sampling.max_tokens
        reason = None
        while reason is None:
            remaining = replace(
                sampling, max_tokens=max_tokens - len(turn), seed=sampling.seed + len(turn)
            )
            on_tokens = None if forwarder is None else forwarder.make_callback(turn)
            choice, version = await self._sample_part(ids + turn, remaining, session, on_tokens)
            turn += choice.token_ids
            append_version_span(version_spans, version, len(choice.token_ids))
            logprobs += _read_logprobs(choice, len(ids) + len(turn), session)
            text = self._stop_matcher.decode(turn)
            is_full = len(turn) == max_tokens or len(ids) + len(turn) >= self._pool.max_len
            reason = _get_stop_reason(choice, text, sampling.stop) or (
                StopReason.LENGTH if is_full else None
            )
        return Completion(turn, logprobs, text, reason, version_spans)

    async def _sample_part(
        self, ids: list[int], sampling: SamplingParams, session: str, on_tokens: OnTokens | None
    ) -> tuple[CompletionChoice, int]:
        """Sample the part that vLLM generates after `ids`, retrying if servers are lost. Returns it
        with the version of its weights."""
        async for attempt in _make_attempts():
            with attempt:
                snapshot = await self._sync_weights()
                max_len = self._pool.max_len
                if not 0 < len(ids) < max_len:
                    raise UserError(
                        f"A prompt of {len(ids)} tokens does not fit into max_model_len={max_len}"
                        " tokens; shorten it or raise engine.max_model_len."
                    )
                with self._pool.lease_server(self, session) as server:
                    params = self._make_sampling_params(
                        sampling, max_len - len(ids), server.supports_seeds
                    )
                    if on_tokens is None:
                        choice = await server.sample(ids, params, snapshot.label)
                    else:
                        choice = await server.stream(ids, params, snapshot.label, on_tokens)
        if choice.weight_labels != ({snapshot.label} if choice.token_ids else set()):
            raise UserError(
                "vLLM sampled a turn from several weight versions, or from other weights than the"
                " published ones: make sure that no other run uses the same engine.urls."
            )
        return choice, snapshot.version

    def _make_sampling_params(
        self, sampling: SamplingParams, max_tokens: int, seeds: bool
    ) -> dict[str, Any]:
        """Return vLLM's sampling parameters of a turn. Limits and end tokens are all explicit,
        because an externally started server may read missing ones from the model's folder."""
        params: dict[str, Any] = {
            "max_tokens": min(sampling.max_tokens, max_tokens),
            "temperature": sampling.temperature,
            "top_k": sampling.truncation.top_k,
            "top_p": sampling.truncation.top_p,
            "min_p": sampling.truncation.min_p,
            "stop": list(sampling.stop),
            "ignore_eos": True,
            "stop_token_ids": self._turn_end_ids,
            "skip_special_tokens": False,
            "logprobs": 0,  # only of the sampled token
        }
        return params | ({"seed": sampling.seed % 2**63} if seeds else {})


class _TokenForwarder:
    """Forwarder of a turn's tokens to a callback, once per token, even if its server fails and
    another one samples the turn again."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self.on_token, self.num_forwarded = on_token, 0

    def make_callback(self, turn: Sequence[int]) -> OnTokens:
        """Return a callback for the tokens sampled after `turn`, which receives all of them so
        far."""
        start = len(turn)

        def forward(tokens: Sequence[int]) -> None:
            for token in tokens[self.num_forwarded - start :]:
                self.on_token(token)
                self.num_forwarded += 1

        return forward


def _read_logprobs(choice: CompletionChoice, end: int, session: str) -> list[float]:
    """Return the log-probabilities of a choice whose last token is before position `end`. Raises
    FloatingPointError if one is not finite."""
    logprobs = [token.logprob for token in choice.logprobs.content]
    for position, logprob in enumerate(logprobs, start=end - len(logprobs)):
        if not NON_FINITE_LOGPROB < logprob < math.inf:
            raise FloatingPointError(
                f"the model's logits for position {position} of session {session!r} are not finite:"
                " its weights or activations contain NaN or infinity"
            )
    return logprobs


def _get_stop_reason(
    choice: CompletionChoice, text: str, stops: Sequence[str]
) -> StopReason | None:
    """Return the reason why a turn ended; None if it did not end."""
    if choice.finish_reason == "length":
        return StopReason.LENGTH
    if choice.finish_reason != "abort" and not isinstance(choice.stop_reason, str):
        return StopReason.EOS
    return StopReason.STOP if any(stop in text for stop in stops) else None


def _make_attempts() -> AsyncRetrying:
    """Return attempts that retry a call after lost servers, and finally raise UserError."""
    return AsyncRetrying(
        retry=retry_if_exception_type(ServerLostError),
        stop=stop_after_attempt(MAX_CONSECUTIVE_FAILURES + 1),
        retry_error_callback=_raise_user_error,
    )


def _raise_user_error(state: Any) -> None:
    error = state.outcome.exception()
    raise UserError(f"vLLM failed repeatedly ({error}): see its log.") from error
