"""Continuous batching over a transformers model in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fieldcraft.engine.attention import refuse_special_attention
from fieldcraft.engine.local.kv_cache import RowCache, make_plan, row_attention, to_device
from fieldcraft.engine.local.requests import Request, Stats, eos_ids
from fieldcraft.engine.local.rows import Ints, Rows
from fieldcraft.engine.local.sampling import sample, uniforms
from fieldcraft.engine.local.stops import StopStrings
from fieldcraft.engine.threads import using_threads
from fieldcraft.types import Completion, Sampling, StopReason, Tokenizer, UserError

# Turns of the event loop given away after a step that ended a turn: a tool that does not wait
# answers within them, so its rollout rejoins the very next step.
HOPS = 8


class LocalEngine:
    """Runs many sessions on one model; obeys `types.PolicyEngine`.

    In each step one forward serves every running session: those that decode add one token, those
    that got a prompt or an observation add what is new in it. A session keeps its row of the cache
    while its tool works and costs nothing then. A new session starts from the row that shares the
    longest prefix with it, so a group's prompt, or instructions common to all prompts, are computed
    once. Everything happens on the caller's event loop; work is done only while calls wait.

    Training may change the model's weights between calls; `publish` must follow.

    Args:
        model: a transformers causal language model with plain full attention, on any device.
        tokenizer: the model's tokenizer, for stop strings and texts.
        max_rows: sessions that hold a cache at once. Further ones take over the row of the session
            that has been parked longest (it is computed anew when it returns) or wait.
        max_len: tokens of a session, `config.max_position_embeddings` if None.
        step_tokens: tokens of one forward; a longer prompt is computed in several steps.
        threads: CPU threads while it computes, those that torch is set to if None.

    Raises:
        UserError: the model's attention is not plain full attention.
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
        self.model = model
        self.config = model.config.get_text_config()
        refuse_special_attention(model)
        self.max_rows = max_rows
        self.max_len = max_len or int(self.config.max_position_embeddings)
        self.step_tokens = step_tokens
        self.threads = threads
        self.version = 0
        self.stats = Stats()
        self._stops = StopStrings(tokenizer, self.config.vocab_size)
        self._is_eos = np.zeros(self.config.vocab_size, bool)
        self._is_eos[eos_ids(model, tokenizer)] = True
        self._waiting: list[Request] = []  # calls without a row, oldest first
        self._calls: dict[str, Request] = {}  # calls that have not returned, by session
        self._task: asyncio.Task[None] | None = None
        self._forget()

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """Continue `ids` until an end-of-sequence token, a stop string or `max_tokens`.

        Of a session's cache, what `ids` begins with is kept and the rest dropped.

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
        if session in self._calls:
            raise RuntimeError(f"session {session!r} is already generating")
        future = asyncio.get_running_loop().create_future()
        stop_set = self._stops.index(sampling.stop)
        request = Request(tokens, sampling, stop_set, session, future)
        self._calls[session] = request
        self._waiting.append(request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="engine")
            self._task.add_done_callback(self._pass_on)
        try:
            return await future
        except asyncio.CancelledError:
            self.release(session)
            raise
        finally:
            del self._calls[session]

    def release(self, session: str) -> None:
        """Forget a session's cache; a call that has not returned yet is cancelled."""
        call = self._calls.get(session)
        if call is not None:
            call.future.cancel()
            if call in self._waiting:
                self._waiting.remove(call)
        row = self._sessions.pop(session, None)
        if row is not None:
            self._park(row)
            self._rows.owner[row] = None

    async def sleep(self) -> None:
        """Drop every cached session and free its memory.

        Raises RuntimeError while calls are generating.
        """
        if self._calls:
            raise RuntimeError("the engine cannot sleep while it is generating")
        self._forget()

    async def publish(self, version: int) -> None:
        """The model's weights have changed: every cached session is dropped, and what is sampled
        from now on bears the new version.

        Raises RuntimeError while calls are generating: their cache would mix two policies.
        """
        await self.sleep()
        self.version = version

    # ---- sessions and rows

    def _forget(self) -> None:
        rows, capacity = min(self.max_rows, 16), min(self.max_len, 32)
        self._rows = Rows(rows, capacity)
        self._cache = RowCache(self.config.num_hidden_layers, rows, capacity)
        self._sessions: dict[str, int] = {}

    def _reserve(self, rows: int, length: int) -> None:
        """Make room for so many rows and tokens in each."""
        old_rows, old_capacity = self._rows.shape
        new_rows, new_capacity = old_rows, old_capacity
        if rows > old_rows:
            new_rows = min(max(rows, 2 * old_rows), self.max_rows)
        if length > old_capacity:
            # In small steps, for what is allocated is also read; geometric, so that copying costs
            # little.
            wanted = max(length, old_capacity + old_capacity // 4)
            new_capacity = min(-(-wanted // 32) * 32, self.max_len)
        if (new_rows, new_capacity) != (old_rows, old_capacity):
            self._rows.grow(new_rows, new_capacity)
            self._cache.grow(new_rows, new_capacity)

    def _park(self, row: int) -> None:
        self._rows.active[row] = False
        self._rows.used[row] = self.stats.forwards

    def _admit(self) -> None:
        """Give rows to waiting requests, in order of arrival."""
        waiting, self._waiting = self._waiting, []
        new = [request for request in waiting if request.session not in self._sessions]
        self._reserve(
            rows=min(self.max_rows, len(self._sessions) + len(new)),
            length=max((len(request.ids) for request in waiting), default=0),
        )
        for request in waiting:  # first, lest a new session takes the row of one that is back
            row = self._sessions.get(request.session)
            if row is not None:
                known = self._rows.common_prefix(request.ids, np.array([row]))
                self._begin(request, row, min(int(known[0]), int(self._rows.cached[row])))
        copies: list[tuple[int, int, int]] = []
        for request in new:
            copy = self._find_row(request)
            if copy is None:
                self._waiting.append(request)
            else:
                copies.append(copy)
                self._begin(request, copy[1], cached=0)  # known again once it is copied
        donors, rows, lengths = np.array([copy for copy in copies if copy[2]]).reshape(-1, 3).T
        if len(rows):
            self._cache.copy(donors, rows, int(lengths.max()))
            self._rows.cached[rows] = lengths

    def _find_row(self, request: Request) -> tuple[int, int, int] | None:
        """(row to copy from, row for the request, tokens to copy); None if it has to wait."""
        table = self._rows
        known = table.common_prefix(request.ids, np.arange(table.shape[0]))
        cached = np.minimum(known, table.cached)
        donor = int(cached.argmax())
        # A row that is reading the same prompt right now (the first of a group) is worth waiting
        # for, if that at least halves what is left to compute.
        coming = int(known[table.active].max(initial=0))
        if 2 * (coming - cached[donor]) >= len(request.ids) - cached[donor]:
            return None
        row = table.vacant()
        if row is None:
            return None
        evicted = table.owner[row]
        if evicted is not None:
            self.stats.evicted += 1
            del self._sessions[evicted]
        self._sessions[request.session] = row
        return donor, row, int(cached[donor])

    def _begin(self, request: Request, row: int, cached: int) -> None:
        table, sampling, length = self._rows, request.sampling, len(request.ids)
        table.tokens[row, :length] = request.ids
        table.cached[row] = cached
        table.length[row] = table.turn_start[row] = length
        table.turn_end[row] = min(length + sampling.max_tokens, self.max_len)
        table.temperature[row] = sampling.temperature
        table.seed[row] = sampling.seed % 2**64
        table.stop_set[row] = request.stop_set
        table.owner[row] = request.session
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
                rows, capacity = self._rows.shape
                raise UserError(
                    f"The device ran out of memory with a cache of {rows} sessions x {capacity} "
                    f"tokens ({self._cache.bytes / 2**30:.1f} GiB); lower max_rows, max_len or "
                    "step_tokens of the local engine."
                ) from error
            self.stats.seconds += time.perf_counter() - began
            for _ in range(HOPS if ended else 1):
                await asyncio.sleep(0)

    def _pass_on(self, task: asyncio.Task[None]) -> None:
        """A step that failed fails all calls; what the cache holds then is not trusted."""
        if task.cancelled():
            for call in self._calls.values():
                call.future.cancel()
        elif (error := task.exception()) is not None:
            self._waiting = []
            self._forget()
            for call in self._calls.values():
                if not call.future.done():
                    call.future.set_exception(error)

    def _step(self) -> bool:
        """Compute what every active row lacks, sample where that is complete; whether a turn
        ended."""
        table = self._rows
        self._reserve(0, int(table.length[table.active].max()) + 1)
        rows = self._gather_active()
        starts, lengths = table.cached[rows], table.length[rows]
        counts = self._ration(lengths - starts)
        complete = starts + counts == lengths
        sampling = rows[complete]
        last = np.cumsum(counts)[complete] - 1
        ids, logprobs = self._forward(rows, starts, counts, sampling, last)
        table.cached[rows] += counts
        table.tokens[sampling, lengths[complete]] = ids
        table.logprobs[sampling, lengths[complete]] = logprobs
        table.length[sampling] += 1
        self.stats.sampled += len(sampling)
        self.stats.prefilled += int((table.turn_start[rows] - starts).clip(0, counts).sum())
        self.stats.forwards += 1
        return self._end_turns(sampling, ids, logprobs)

    def _gather_active(self) -> Ints:
        """The active rows, moved to the front if too many others lie between them: attention reads
        the cache from row 0 to the last active one."""
        table = self._rows
        rows = np.flatnonzero(table.active)
        if rows[-1] + 1 > 1.25 * len(rows) + 4:
            behind = rows[rows >= len(rows)]
            gaps = np.flatnonzero(~table.active[: len(rows)])
            self._cache.copy(
                np.concatenate([behind, gaps]),
                np.concatenate([gaps, behind]),
                int(max(table.cached[behind].max(), table.cached[gaps].max())),
            )
            table.exchange(behind, gaps)
            for row in (*behind, *gaps):
                if table.owner[row] is not None:
                    self._sessions[table.owner[row]] = int(row)
            rows = np.arange(len(rows))
        return rows

    def _ration(self, wanted: Ints) -> Ints:
        """At least one token a row, and beyond that no more than `step_tokens` in all."""
        beyond = wanted - 1
        before = np.cumsum(beyond) - beyond
        return 1 + (self.step_tokens - len(wanted) - before).clip(0, beyond)

    def _forward(
        self, rows: Ints, starts: Ints, counts: Ints, sampling: Ints, last: Ints
    ) -> tuple[Ints, Any]:
        """One forward of the model and the samples drawn from it, on the host."""
        table, device = self._rows, self.model.device
        draws = uniforms(table.seed[sampling], table.length[sampling])
        numbers = np.stack([table.temperature[sampling], draws])
        with torch.inference_mode(), row_attention(self.config):
            self._cache.plan = plan = make_plan(table.tokens, rows, starts, counts, device)
            temperatures, draws_N = to_device(numbers, device)
            output = self.model(
                input_ids=plan.ids[None],
                position_ids=plan.positions[None],
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=to_device(last, device),
                plan=plan,
            )
            ids, logprobs = sample(output.logits[0], temperatures, draws_N)
            # float64 holds both exactly, so that one copy, and one wait, brings them here.
            host = torch.stack([ids.double(), logprobs.double()]).cpu().numpy()
        return host[0].astype(np.int64), host[1]

    def _end_turns(self, rows: Ints, ids: Ints, logprobs: Any) -> bool:
        """Complete the calls whose turn the tokens just sampled have ended; whether there were
        any."""
        table = self._rows
        eos = self._is_eos[ids]
        full = table.length[rows] == table.turn_end[rows]
        maybe_stop = self._stops.completing[table.stop_set[rows], ids]
        broken = ~np.isfinite(logprobs)
        before = int(table.active.sum())
        for i in np.flatnonzero(eos | full | maybe_stop | broken):
            row = int(rows[i])
            start, end = int(table.turn_start[row]), int(table.length[row])
            request = self._calls[table.owner[row]]
            if broken[i]:
                self._fail(row, request)
                continue
            turn = table.tokens[row, start:end].tolist()
            if eos[i]:
                reason = StopReason.EOS
            elif maybe_stop[i] and self._stops.completed(turn, request.sampling.stop):
                reason = StopReason.STOP
            elif full[i]:
                reason = StopReason.LENGTH
            else:
                continue
            self._park(row)
            logprobs_turn = table.logprobs[row, start:end].tolist()
            text = self._stops.decode(turn)
            request.future.set_result(Completion(turn, logprobs_turn, text, reason, self.version))
        return int(table.active.sum()) < before

    def _fail(self, row: int, request: Request) -> None:
        position = int(self._rows.length[row]) - 1
        self._cache.clear(row)
        self._rows.cached[row] = 0
        self._park(row)
        self._rows.owner[row] = None
        del self._sessions[request.session]
        request.future.set_exception(
            FloatingPointError(
                f"the model's logits for position {position} of session {request.session!r} are "
                "not finite: its weights or activations hold NaN or infinity"
            )
        )
