"""Continuous batching over a transformers model in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fieldcraft.engine.attention import refuse_special_attention
from fieldcraft.engine.copies import copy_of, refresh
from fieldcraft.engine.local.blocks import BLOCK, Ints
from fieldcraft.engine.local.comparison import require_cached
from fieldcraft.engine.local.forward import forward
from fieldcraft.engine.local.kv_cache import BlockCache
from fieldcraft.engine.local.plan import order, to_device
from fieldcraft.engine.local.requests import Request, Stats, turn_end
from fieldcraft.engine.local.rows import Rows
from fieldcraft.engine.local.sampling import uniforms
from fieldcraft.engine.local.stops import StopStrings
from fieldcraft.engine.local.truncation import sample_rows
from fieldcraft.engine.sizes import session_tokens
from fieldcraft.engine.threads import using_threads
from fieldcraft.engine.versions import extend
from fieldcraft.sampling import Sampling
from fieldcraft.types import Completion, StopReason, Tokenizer, UserError

# Turns of the event loop given away after a step that ended a turn, at most: a tool that does not
# wait answers within them, so its rollout rejoins the very next step.
HOPS = 8


class LocalEngine:
    """An engine that runs many sessions on one model; obeys `types.PolicyEngine`.

    In each step one forward serves every running session: those that decode add one token, those
    that got a prompt or an observation add what is new in it. A session keeps its blocks of the
    cache while its tool works and costs nothing then. A new session shares the blocks that begin
    as it does, so a group's prompt, or instructions common to all prompts, are computed and kept
    once. Everything happens on the caller's event loop; work is done only while calls wait.

    The cache grows by blocks of 32 tokens, with the tokens that sessions hold; at most it has
    `max_rows` x `max_len` tokens.

    Training may change the model's weights between calls; `publish` must follow. After `separate`
    the engine has a copy of them, and the model may be trained while calls generate.

    Args:
        model: a transformers causal language model with plain attention, on any device.
        tokenizer: the model's tokenizer, for stop strings and texts.
        max_rows: sessions that hold a cache at once. Further ones take over the row of the session
            that has been parked longest (when it returns, it finds its blocks if nobody has taken
            them, and else is computed anew) or wait.
        max_len: tokens of a session, as many as the model has positions if None.
        step_tokens: tokens of one forward; a longer prompt is computed in several steps.
        threads: CPU threads while it computes, those that torch is set to if None.

    Raises:
        UserError: the model's attention is not plain attention, or it computes otherwise with
            its cache than without.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        max_rows: int,
        max_len: int | None = None,
        step_tokens: int = 8192,
        threads: int | None = None,
    ) -> None:
        self.model = self._trained = model
        self.config = model.config.get_text_config()
        refuse_special_attention(model)
        with using_threads(threads):
            require_cached(model)
        self.max_rows = max_rows
        self.max_len = session_tokens(self.config, max_len)
        self.step_tokens = step_tokens
        self.threads = threads
        self.version = 0
        self.stats = Stats()
        self._stops = StopStrings(tokenizer, self.config.vocab_size)
        self._is_eos = np.zeros(self.config.vocab_size, bool)
        self._is_eos[list(turn_end(model, tokenizer).ids)] = True
        self._waiting: list[Request] = []  # calls without a row, oldest first
        self._calls: dict[str, Request] = {}  # calls that have not returned, by session
        self._followed: dict[str, Request] = {}  # those of them with a follower: none in training
        self._task: asyncio.Task[None] | None = None
        self._forget()

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: str,
        follow: Callable[[int], None] | None = None,
    ) -> Completion:
        """Continue `ids` until an end-of-sequence token, a stop string or `max_tokens`.

        Of a session's cache, what `ids` begins with is kept and the rest dropped. `follow` is
        called with each token as soon as it is sampled.

        Raises:
            UserError: `ids` leave no room below `max_len`, or the device's memory is exhausted.
            FloatingPointError: the model's logits were not finite.
            RuntimeError: the session is already generating.
        """
        if not 0 < len(ids) < self.max_len:
            raise UserError(
                f"A prompt of {len(ids)} tokens does not fit into max_len={self.max_len} tokens; "
                "shorten it or raise max_len."
            )
        if sampling.max_tokens < 1 or sampling.temperature < 0:
            raise ValueError(f"max_tokens must be positive, temperature not negative: {sampling}")
        tokens = np.array(ids, np.int64)
        if tokens.min() < 0 or tokens.max() >= self.config.vocab_size:
            raise ValueError(f"a token id lies outside of the vocabulary: {tokens.tolist()}")
        before = self._calls.get(session)
        if before is not None and not before.future.cancelled():
            raise RuntimeError(f"session {session!r} is already generating")
        future = asyncio.get_running_loop().create_future()
        stop_set = self._stops.index(sampling.stop)
        request = Request(tokens, sampling, stop_set, session, future, follow)
        self._calls[session] = request
        if follow is not None:
            self._followed[session] = request
        self._waiting.append(request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="engine")
            self._task.add_done_callback(self._pass_on)
        try:
            return await future
        except asyncio.CancelledError:
            if self._calls.get(session) is request:
                self.release(session)
            raise
        finally:
            if self._calls.get(session) is request:  # else one that came after its release
                del self._calls[session]
                self._followed.pop(session, None)

    def release(self, session: str) -> None:
        """Forget a session's cache; a call that has not returned yet is cancelled."""
        call = self._calls.get(session)
        if call is not None:
            call.future.cancel()
            if call in self._waiting:
                self._waiting.remove(call)
        row = self._rows.of.get(session)
        if row is not None:
            self._rows.release(row)

    @property
    def sessions(self) -> int:
        """Number of sessions that hold a cache or wait for one."""
        return len(self._rows.of.keys() | self._calls.keys())

    async def sleep(self) -> None:
        """Drop every cached session and free its memory.

        Raises RuntimeError while calls are generating.
        """
        if self._calls:
            raise RuntimeError("the engine cannot sleep while it is generating")
        self._forget()

    async def separate(self) -> None:
        """Sample from a copy of the model from now on, which `publish` brings up to date."""
        self.model = copy_of(self._trained)
        self.config = self.model.config.get_text_config()

    async def publish(self, version: int) -> None:
        """Take over the model's changed weights: what is sampled from now on bears the new version.

        Every cached session is dropped, so turns that are being sampled are read again with the new
        weights: no token comes from keys and values of two policies.
        """
        calls = [call for call in self._calls.values() if not call.future.done()]
        for call in calls:
            self._interrupt(call)
        self._waiting = calls
        self._forget()
        if self.model is not self._trained:
            refresh(self.model, self._trained)
        self.version = version

    def _interrupt(self, request: Request) -> None:
        """Keep what a request has sampled so far; it needs a row again."""
        table, row = self._rows, self._rows.of.get(request.session)
        if row is not None and table.active[row]:
            start, end = int(table.turn_start[row]), int(table.length[row])
            request.logprobs += table.read_logprobs(row, start, end).tolist()
            extend(request.versions, self.version, end - start)
            request.ids = table.read(row, 0, end)

    # ---- sessions and rows

    def _forget(self) -> None:
        self._rows = Rows(self.max_rows)
        self._cache = BlockCache(self.config.num_hidden_layers)

    def _admit(self) -> None:
        """Give rows to waiting requests, in order of arrival."""
        waiting, self._waiting = self._waiting, []
        table, new = self._rows, list[Request]()
        for request in waiting:  # first, lest a new session takes the row of one that is back
            row = table.of.get(request.session)
            if row is None:
                new.append(request)
            else:
                table.resume(row, request.ids)
                self._begin(request, row)
        for request in new:
            if not self._start(request):
                self._waiting.append(request)
        self._cache.fit(table.blocks.count)
        table.copy_in(self._cache)

    def _start(self, request: Request) -> bool:
        """Give a new session a row and the blocks known of it. Returns False if it has to wait."""
        table, length = self._rows, len(request.ids)
        if not table.claimable:
            return False
        blocks, known = table.blocks.find(request.ids)
        known = min(known, length - 1)  # the last token must be computed in any case
        cached = table.blocks.computed_of(blocks, known)
        # A row that is reading the same prompt right now (the first of a group) is worth waiting
        # for, if that at least halves what is left to compute.
        if 2 * (known - cached) >= length - cached:
            return False
        row, evicted = table.claim(request.session)
        self.stats.evicted += evicted
        table.start(row, request.ids, blocks, cached)
        self._begin(request, row)
        return True

    def _begin(self, request: Request, row: int) -> None:
        table, sampling = self._rows, request.sampling
        table.turn_end[row] = min(request.begin + sampling.max_tokens, self.max_len)
        table.sample_as(row, sampling)
        table.stop_set[row] = request.stop_set
        table.active[row] = True

    # ---- steps

    async def _work(self) -> None:
        while self._waiting or self._rows.active.any():
            if self.model.training:  # it was trained since the last call
                self.model.eval()
            began = time.perf_counter()
            try:
                with using_threads(self.threads):
                    self._admit()
                    ended = self._step()
            except torch.OutOfMemoryError as error:
                raise UserError(
                    f"The device ran out of memory with a cache of {self._cache.blocks * BLOCK} "
                    f"tokens ({self._cache.bytes / 2**30:.1f} GiB); lower max_rows, max_len or "
                    "step_tokens of the local engine."
                ) from error
            self.stats.seconds += time.perf_counter() - began
            all_back = len(self._waiting) + ended
            for _ in range(HOPS):
                await asyncio.sleep(0)
                if len(self._waiting) >= all_back:
                    break

    def _pass_on(self, task: asyncio.Task[None]) -> None:
        """Fail all calls because a step failed; what the cache holds then is not trusted."""
        if task.cancelled():
            for call in self._calls.values():
                call.future.cancel()
        elif (error := task.exception()) is not None:
            self._waiting = []
            self._forget()
            for call in self._calls.values():
                if not call.future.done():
                    call.future.set_exception(error)

    def _step(self) -> int:
        """Compute what every active row lacks, and sample where that is complete. Returns the
        number of turns that have ended."""
        table = self._rows
        rows = np.flatnonzero(table.active)
        counts = self._ration(table.length[rows] - table.cached[rows])
        rows, counts = rows[counts > 0], counts[counts > 0]
        line = order(table.cached[rows], counts)
        rows, counts = rows[line], counts[line]
        starts, lengths = table.cached[rows], table.length[rows]
        complete = starts + counts == lengths
        sampling = rows[complete]
        last = np.cumsum(counts)[complete] - 1
        ids, logprobs = self._forward(rows, counts, sampling, last)
        table.advance(rows, counts)
        table.add(sampling, ids, logprobs)
        self.stats.sampled += len(sampling)
        self.stats.prefilled += int((table.turn_start[rows] - starts).clip(0, counts).sum())
        self.stats.forwards += 1
        self._tell(sampling, ids)
        return self._end_turns(sampling, ids, logprobs)

    def _tell(self, rows: Ints, ids: Ints) -> None:
        """Tell the followers of calls the tokens just sampled for them."""
        for call in self._followed.values():
            row = self._rows.of.get(call.session)
            if call.follow is not None and row is not None and not call.future.done():
                for token in ids[rows == row].tolist():
                    call.follow(token)

    def _ration(self, wanted: Ints) -> Ints:
        """Return the number of tokens that each row computes: one if it decodes. The others, in
        their order, share what is left of `step_tokens`, at least one token. 0 for those that wait,
        so that a prompt is computed as a whole where it can be."""
        is_long = wanted > 1
        asked = np.where(is_long, wanted, 0)
        left = max(self.step_tokens - int((~is_long).sum()), 1)
        before = np.cumsum(asked) - asked
        return np.where(is_long, (left - before).clip(0, asked), 1)

    def _forward(self, rows: Ints, counts: Ints, sampling: Ints, last: Ints) -> tuple[Ints, Any]:
        """Run one forward of the model and sample from it. Returns ids and log-probabilities, on
        the host."""
        table, device = self._rows, self.model.device
        draws = uniforms(table.seed[sampling], table.length[sampling])
        numbers = np.stack([table.temperature[sampling], draws, *table.limits[:, sampling]])
        truncated = table.truncated[sampling]
        logits = forward(self.model, self._cache, table, rows, counts, last)
        with torch.inference_mode():
            ids, logprobs = sample_rows(logits, to_device(numbers, device), truncated)
            # float64 holds both exactly, so that one copy, and one wait, brings them here.
            host = torch.stack([ids.double(), logprobs.double()]).cpu().numpy()
        return host[0].astype(np.int64), host[1]

    def _end_turns(self, rows: Ints, ids: Ints, logprobs: Any) -> int:
        """Complete the calls whose turn the tokens just sampled have ended, and return their
        number."""
        table = self._rows
        eos = self._is_eos[ids]
        full = table.length[rows] == table.turn_end[rows]
        maybe_stop = self._stops.completing[table.stop_set[rows], ids]
        broken = ~np.isfinite(logprobs)
        before = int(table.active.sum())
        for i in np.flatnonzero(eos | full | maybe_stop | broken):
            row = int(rows[i])
            start, end = int(table.turn_start[row]), int(table.length[row])
            request = self._calls[table.owner[row] or ""]
            if request.future.cancelled():  # its caller is about to release it
                continue
            if broken[i]:
                self._fail(row, request)
                continue
            turn = table.read(row, request.begin, end).tolist()
            if eos[i]:
                reason = StopReason.EOS
            elif maybe_stop[i] and self._stops.completed(turn, request.sampling.stop):
                reason = StopReason.STOP
            elif full[i]:
                reason = StopReason.LENGTH
            else:
                continue
            table.park(row)
            logprobs_turn = request.logprobs + table.read_logprobs(row, start, end).tolist()
            text = self._stops.decode(turn)
            extend(request.versions, self.version, end - start)
            done = Completion(turn, logprobs_turn, text, reason, request.versions)
            request.future.set_result(done)
        return before - int(table.active.sum())

    def _fail(self, row: int, request: Request) -> None:
        position = int(self._rows.length[row]) - 1
        self._rows.spoil(row)
        request.future.set_exception(
            FloatingPointError(
                f"the model's logits for position {position} of session {request.session!r} are "
                "not finite: its weights or activations hold NaN or infinity"
            )
        )
