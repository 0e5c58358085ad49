"""An engine whose model runs in servers of vLLM, and gets its weights from the trainer's."""

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
from fieldcraft.engine.home import Home
from fieldcraft.engine.local.requests import turn_end
from fieldcraft.engine.local.stops import StopStrings
from fieldcraft.engine.sizes import session_tokens
from fieldcraft.engine.versions import extend
from fieldcraft.engine.vllm.client import Choice, Gone
from fieldcraft.engine.vllm.servers import MOST_DEATHS, Own, Remote, Servers, Serving
from fieldcraft.engine.vllm.weights import Here, Origin, Weights, place_for
from fieldcraft.sampling import Sampling
from fieldcraft.types import Completion, Span, StopReason, Tokenizer, UserError

Tell = Callable[[Sequence[int]], None]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Elsewhere = Callable[[Path, Path | None, Serving, Home], Servers]
# Nats between the log-probabilities of the same weights, here and there. In bfloat16 the order of
# sums alone moves them this far.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
NOT_FINITE = -9999.0  # what vLLM writes for a log-probability that is no number


class VllmEngine:
    """An engine that samples from vLLM with the weights of a model in this process; obeys
    `types.PolicyEngine`.

    The servers are those of `urls`, or one that is started by `python`, the interpreter of an
    environment that has vLLM. They hold the weights as they were at the last `publish`, and are
    proved to after every change. Before the first one, they hold those of the first `generate` or
    of `separate`. At no other time is the model read, so another thread may train it.

    Args:
        model: a transformers causal language model.
        tokenizer: its tokenizer.
        home: of the run, whose engines share the servers.
        max_rows: sessions that are sampled at once.
        threads: of a CPU, for a server that is started here.
        python: the interpreter of the server that is started here.
        urls: of servers that run already, such as http://127.0.0.1:8000.
        memory: GiB of the cache of keys and values, of a server that is started here.
        max_len: tokens of a session, of a server that is started here; `max_position_embeddings`
            of the model if None.
        dtype: in which the model computes, and a server that is started here does.
        exchange: the folder that weights pass through, which the servers must see; None: shared
            memory for a server that is started here, and a folder in that of the run for others.
        tolerance: nats that the servers' log-probabilities may be from the model's; None: 1e-4 in
            float32, 0.1 in bfloat16.
        timeout_seconds: that a server may take for one answer, and to start.
        source: has the weights of a model that is not in this process; `model` then has none.
        elsewhere: makes the servers that are started on other machines.

    Raises:
        UserError: neither or both of `python` and `urls`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        home: Home,
        max_rows: int,
        threads: int | None = None,
        python: Path | None = None,
        urls: tuple[str, ...] = (),
        memory: Positive = 1.0,
        max_len: Count | None = None,
        dtype: Dtype = "float32",
        exchange: Path | None = None,
        tolerance: Positive | None = None,
        timeout_seconds: Positive = 1800.0,
        source: Origin | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        if (python is None) == (not urls):
            raise UserError(
                "engine=vllm needs either engine.python, the interpreter of an environment that has"
                " vLLM, or engine.urls, the addresses of servers: set one of them."
            )
        settings = Serving(
            max_rows=max_rows,
            threads=threads if model.device.type != "cuda" else None,
            memory=memory,
            max_len=session_tokens(model.config.get_text_config(), max_len),
            dtype=dtype,
            tolerance=tolerance or TOLERANCE[dtype],
            timeout_seconds=timeout_seconds,
        )

        def make() -> Servers:
            if python is not None and elsewhere is not None:
                return elsewhere(python, exchange, settings, home)
            if python is None:
                return Remote(urls, exchange, settings, home)
            shared = place_for(model, home.folder)
            return Own(python, exchange, settings, home, shared)

        self.model = model
        self.tokenizer = tokenizer
        self.config = model.config.get_text_config()
        self.version = 0
        self.published: dict[str, float] = {}  # what the last publish has cost
        self._origin = source or Here(model)
        self._servers = home.once("vllm", make)
        self._stops = StopStrings(tokenizer, self.config.vocab_size)
        self._ends = sorted(turn_end(model, tokenizer).ids)
        self._published: Weights | None = None
        self._calls: dict[str, asyncio.Task[Completion]] = {}

    async def check(self) -> None:
        """Raise UserError for a Python without vLLM, and for a server that runs already and cannot
        be used."""
        await self._servers.check(self.config.to_dict())

    @property
    def max_len(self) -> int:
        """Tokens of a session: that of the servers, once they hold weights."""
        return self._servers.max_len or session_tokens(self.config, None)

    @property
    def sessions(self) -> int:
        """Number of sessions that are generating; servers forget the others by themselves."""
        return len(self._calls)

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: str,
        follow: Callable[[int], None] | None = None,
    ) -> Completion:
        """Continue `ids` until an end-of-sequence token, a stop string or `max_tokens`.

        Of earlier turns the server computes nothing again but the last incomplete block. If it
        dies, the turn is sampled again, by another one or by itself once it is started again. If
        the weights change, the turn is continued with the new ones. `follow` is called with each
        token of the turn once, as soon as it is sampled.

        Raises:
            UserError: `ids` leave no room below `max_len`, no server is left, or one has other
                weights than it should.
            FloatingPointError: the model's logits were not finite.
            RuntimeError: the session is already generating.
        """
        if sampling.max_tokens < 1 or sampling.temperature < 0:
            raise ValueError(f"max_tokens must be positive, temperature not negative: {sampling}")
        if "" in sampling.stop:
            raise ValueError("a stop string must not be empty")
        if ids and not 0 <= min(ids) <= max(ids) < self.config.vocab_size:
            raise ValueError(f"a token id lies outside of the vocabulary: {list(ids)}")
        if session in self._calls:
            raise RuntimeError(f"session {session!r} is already generating")
        hearing = None if follow is None else _Hearing(follow)
        call = asyncio.create_task(self._generate(list(ids), sampling, session, hearing))
        self._calls[session] = call
        try:
            return await call
        finally:
            del self._calls[session]

    def release(self, session: str) -> None:
        """Cancel a call that has not returned yet; the server forgets a session by itself when it
        needs the room."""
        if session in self._calls:
            self._calls[session].cancel()

    async def sleep(self) -> None:
        """Empty the caches of the servers. Raises RuntimeError while calls are generating."""
        if self._calls:
            raise RuntimeError("the engine cannot sleep while it is generating")
        await self._servers.forget()

    async def separate(self) -> None:
        """Give the servers weights of their own: if none were published yet, those of now."""
        self.newest()

    async def publish(self, version: int) -> None:
        """Give the servers the model's weights as they are now, and prove that they sample from
        them. Turns that are being sampled keep what they have, and go on with the new weights.

        Raises UserError if the servers do not sample from them.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        # In a thread, so that sessions continue meanwhile.
        weights = await asyncio.to_thread(
            self._servers.publish, self._origin, self.tokenizer, version
        )
        await self._servers.bring(weights)
        self._published, self.version = weights, version
        async for attempt in _attempts():
            with attempt:
                await self._hold()
        self.published = {"publish_seconds": clock() - began, "publish_bytes": float(weights.bytes)}

    def newest(self) -> Weights:
        """Return the weights that were published last, or those of now if none were."""
        if self._published is None:
            self._published = self._servers.publish(self._origin, self.tokenizer, self.version)
        return self._published

    async def _hold(self) -> Weights:
        """See to it that the servers hold the weights of this engine, and return them."""
        return await self._servers.hold(self, self.config.to_dict())

    async def _generate(
        self, ids: list[int], sampling: Sampling, session: str, hearing: _Hearing | None
    ) -> Completion:
        """Sample a turn, as a rule in one piece. If the weights change, a piece is cut short, and
        the next one is asked for behind it. vLLM decodes a turn behind its prompt, so it may find a
        stop string that begins in the prompt; then it is asked to go on, too."""
        versions: list[Span] = []
        turn: list[int] = []
        logprobs: list[float] = []
        most = sampling.max_tokens
        reason = None
        while reason is None:
            left = replace(sampling, max_tokens=most - len(turn), seed=sampling.seed + len(turn))
            tell = None if hearing is None else hearing.behind(turn)
            choice, version = await self._piece(ids + turn, left, session, tell)
            turn += choice.token_ids
            extend(versions, version, len(choice.token_ids))
            logprobs += _logprobs(choice, len(ids) + len(turn), session)
            text = self._stops.decode(turn)
            full = len(turn) == most or len(ids) + len(turn) >= self._servers.max_len
            reason = _reason(choice, text, sampling.stop) or (StopReason.LENGTH if full else None)
        return Completion(turn, logprobs, text, reason, versions)

    async def _piece(
        self, ids: list[int], sampling: Sampling, session: str, tell: Tell | None
    ) -> tuple[Choice, int]:
        """Sample the piece that vLLM writes behind `ids`, asking again while servers go. Returns it
        with the version of its weights."""
        async for attempt in _attempts():
            with attempt:
                weights = await self._hold()
                most = self._servers.max_len
                if not 0 < len(ids) < most:
                    raise UserError(
                        f"A prompt of {len(ids)} tokens does not fit into max_len={most} tokens;"
                        " shorten it or raise engine.max_len."
                    )
                with self._servers.sampling(self, session) as server:
                    asked = self._asked(sampling, most - len(ids), server.seeds)
                    if tell is None:
                        choice = await server.sample(ids, asked, weights.label)
                    else:
                        choice = await server.stream(ids, asked, weights.label, tell)
        if choice.labels != ({weights.label} if choice.token_ids else set()):
            raise UserError(
                "vLLM sampled one turn from more than one policy, or from another one than was"
                " published: let no other run use the same engine.urls."
            )
        return choice, weights.version

    def _asked(self, sampling: Sampling, room: int, seeds: bool) -> dict[str, Any]:
        """Return the options of vLLM for how a turn is sampled. Limits and what ends it are said in
        full, because a server of others may take what is missing from the model's folder."""
        asked: dict[str, Any] = {
            "max_tokens": min(sampling.max_tokens, room),
            "temperature": sampling.temperature,
            "top_k": sampling.truncation.top_k,
            "top_p": sampling.truncation.top_p,
            "min_p": sampling.truncation.min_p,
            "stop": list(sampling.stop),
            "ignore_eos": True,
            "stop_token_ids": self._ends,
            "skip_special_tokens": False,
            "logprobs": 0,  # of the sampled token alone
        }
        return asked | ({"seed": sampling.seed % 2**63} if seeds else {})


class _Hearing:
    """The hearing of a turn: whoever follows it hears each of its tokens once, also if its server
    dies, and another one samples the turn again."""

    def __init__(self, follow: Callable[[int], None]) -> None:
        self.follow, self.told = follow, 0

    def behind(self, turn: Sequence[int]) -> Tell:
        """Return a function that hears of the tokens of a piece which follows these, as many as
        there are."""
        begin = len(turn)

        def tell(piece: Sequence[int]) -> None:
            for token in piece[self.told - begin :]:
                self.follow(token)
                self.told += 1

        return tell


def _logprobs(choice: Choice, end: int, session: str) -> list[float]:
    """Return the log-probabilities of the tokens of a piece that ends at position `end`. Raises
    FloatingPointError."""
    found = [token.logprob for token in choice.logprobs.content]
    for place, logprob in enumerate(found, start=end - len(found)):
        if not NOT_FINITE < logprob < math.inf:
            raise FloatingPointError(
                f"the model's logits for position {place} of session {session!r} are not finite:"
                " its weights or activations hold NaN or infinity"
            )
    return found


def _reason(choice: Choice, text: str, stops: Sequence[str]) -> StopReason | None:
    """Return the reason why a turn ended; None if it did not."""
    if choice.finish_reason == "length":
        return StopReason.LENGTH
    if choice.finish_reason != "abort" and not isinstance(choice.stop_reason, str):
        return StopReason.EOS
    return StopReason.STOP if any(stop in text for stop in stops) else None


def _attempts() -> AsyncRetrying:
    """Return attempts that repeat a call while servers go; what then is still gone is a user's
    problem."""
    return AsyncRetrying(
        retry=retry_if_exception_type(Gone),
        stop=stop_after_attempt(MOST_DEATHS + 1),
        retry_error_callback=_give_up,
    )


def _give_up(state: Any) -> None:
    gone = state.outcome.exception()
    raise UserError(f"vLLM failed again and again ({gone}): look into its log.") from gone
