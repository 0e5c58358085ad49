"""Continuous batching over a transformers model in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fieldcraft.engine.attention import require_plain_attention
from fieldcraft.engine.copies import snapshot_model, sync_snapshot
from fieldcraft.engine.local.batch_plan import order_rows, to_device
from fieldcraft.engine.local.block_allocator import BLOCK_TOKENS, IntArray
from fieldcraft.engine.local.forward import forward
from fieldcraft.engine.local.kv_cache import PagedKVCache
from fieldcraft.engine.local.parity import require_cache_parity
from fieldcraft.engine.local.requests import EngineStats, GenerationRequest, find_model_turn_end
from fieldcraft.engine.local.sampling import draw_uniforms
from fieldcraft.engine.local.sequences import SequenceTable
from fieldcraft.engine.local.stops import StopStringMatcher
from fieldcraft.engine.local.truncation import sample_rows
from fieldcraft.engine.sizes import resolve_session_tokens
from fieldcraft.engine.threads import limit_threads
from fieldcraft.engine.versions import append_version_span
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import Tokenizer, UserError

# Turns of the event loop given away after a step that ended a turn, at most: a tool that does not
# wait answers within them, so its rollout rejoins the very next step.
MAX_EVENT_LOOP_YIELDS = 8


class LocalEngine:
    """An engine that runs many sessions on one model; obeys `engine.base.PolicyEngine`.

    In each step one forward serves every running session: those that decode add one token, those
    that got a prompt or an observation add what is new in it. A session keeps its blocks of the
    cache while its tool works and costs nothing then. A new session shares the blocks that begin
    as it does, so a group's prompt, or instructions common to all prompts, are computed and kept
    once. Everything happens on the caller's event loop; work is done only while calls wait.

    The cache grows by blocks of 32 tokens, with the tokens that sessions hold; at most it has
    `max_num_seqs` x `max_model_len` tokens.

    Training may change the model's weights between calls; `update_weights` must follow. After
    `snapshot_weights` the engine has a copy of them, and the model may be trained while calls
    generate.

    Args:
        model: a transformers causal language model with plain attention, on any device.
        tokenizer: the model's tokenizer, for stop strings and texts.
        max_num_seqs: sessions that hold a cache at once. Further ones take over the row of the
            session that has been parked longest (when it returns, it finds its blocks if nobody has
            taken them, and else is computed anew) or wait.
        max_model_len: tokens of a session, as many as the model has positions if None.
        max_batched_tokens: tokens of one forward; a longer prompt is computed in several steps.
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
        max_num_seqs: int,
        max_model_len: int | None = None,
        max_batched_tokens: int = 8192,
        threads: int | None = None,
    ) -> None:
        self.model = self._trained_model = model
        self.config = model.config.get_text_config()
        require_plain_attention(model)
        with limit_threads(threads):
            require_cache_parity(model)
        self.max_num_seqs = max_num_seqs
        self.max_len = resolve_session_tokens(self.config, max_model_len)
        self.max_batched_tokens = max_batched_tokens
        self.threads = threads
        self.version = 0
        self.stats = EngineStats()
        self._stop_matcher = StopStringMatcher(tokenizer, self.config.vocab_size)
        self._is_eos = np.zeros(self.config.vocab_size, bool)
        self._is_eos[list(find_model_turn_end(model, tokenizer).ids)] = True
        self._waiting: list[GenerationRequest] = []  # calls without a row, oldest first
        self._requests: dict[
            str, GenerationRequest
        ] = {}  # calls that have not returned, by session
        self._streaming_requests: dict[
            str, GenerationRequest
        ] = {}  # those of them with a follower: none in training
        self._task: asyncio.Task[None] | None = None
        self._reset_cache()

    async def generate(
        self,
        ids: Sequence[int],
        sampling: SamplingParams,
        session: str,
        on_token: Callable[[int], None] | None = None,
    ) -> Completion:
        """Continue `ids` until an end-of-sequence token, a stop string or `max_tokens`.

        Of a session's cache, what `ids` begins with is kept and the rest dropped. `on_token` is
        called with each token as soon as it is sampled.

        Raises:
            UserError: `ids` leave no room below `max_len`, or the device's memory is exhausted.
            FloatingPointError: the model's logits were not finite.
            RuntimeError: the session is already generating.
        """
        if not 0 < len(ids) < self.max_len:
            raise UserError(
                f"A prompt of {len(ids)} tokens does not fit into max_model_len={self.max_len}"
                " tokens; shorten it or raise engine.max_model_len."
            )
        if sampling.max_tokens < 1 or sampling.temperature < 0:
            raise ValueError(f"max_tokens must be positive, temperature not negative: {sampling}")
        tokens = np.array(ids, np.int64)
        if tokens.min() < 0 or tokens.max() >= self.config.vocab_size:
            raise ValueError(f"a token id lies outside of the vocabulary: {tokens.tolist()}")
        previous = self._requests.get(session)
        if previous is not None and not previous.future.cancelled():
            raise RuntimeError(f"session {session!r} is already generating")
        future = asyncio.get_running_loop().create_future()
        stop_set = self._stop_matcher.register(sampling.stop)
        request = GenerationRequest(tokens, sampling, stop_set, session, future, on_token)
        self._requests[session] = request
        if on_token is not None:
            self._streaming_requests[session] = request
        self._waiting.append(request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run_steps(), name="engine")
            self._task.add_done_callback(self._propagate_failure)
        try:
            return await future
        except asyncio.CancelledError:
            if self._requests.get(session) is request:
                self.release(session)
            raise
        finally:
            if self._requests.get(session) is request:  # else one that came after its release
                del self._requests[session]
                self._streaming_requests.pop(session, None)

    def release(self, session: str) -> None:
        """Forget a session's cache; a call that has not returned yet is cancelled."""
        call = self._requests.get(session)
        if call is not None:
            call.future.cancel()
            if call in self._waiting:
                self._waiting.remove(call)
        row = self._sequences.row_by_session.get(session)
        if row is not None:
            self._sequences.release(row)

    @property
    def num_sessions(self) -> int:
        """Number of sessions that hold a cache or wait for one."""
        return len(self._sequences.row_by_session.keys() | self._requests.keys())

    async def sleep(self) -> None:
        """Drop every cached session and free its memory.

        Raises RuntimeError while calls are generating.
        """
        if self._requests:
            raise RuntimeError("the engine cannot sleep while it is generating")
        self._reset_cache()

    async def snapshot_weights(self) -> None:
        """Sample from a copy of the model from now on, which `update_weights` brings up to date."""
        self.model = snapshot_model(self._trained_model)
        self.config = self.model.config.get_text_config()

    async def update_weights(self, version: int) -> None:
        """Take over the model's changed weights: what is sampled from now on bears the new version.

        Every cached session is dropped, so turns that are being sampled are read again with the new
        weights: no token comes from keys and values of two policies.
        """
        calls = [call for call in self._requests.values() if not call.future.done()]
        for call in calls:
            self._preempt(call)
        self._waiting = calls
        self._reset_cache()
        if self.model is not self._trained_model:
            sync_snapshot(self.model, self._trained_model)
        self.version = version

    def _preempt(self, request: GenerationRequest) -> None:
        """Keep what a request has sampled so far; it needs a row again."""
        table, row = self._sequences, self._sequences.row_by_session.get(request.session)
        if row is not None and table.is_active[row]:
            start, end = int(table.turn_start[row]), int(table.length[row])
            request.logprobs += table.read_logprobs(row, start, end).tolist()
            append_version_span(request.version_spans, self.version, end - start)
            request.ids = table.read_tokens(row, 0, end)

    # ---- sessions and rows

    def _reset_cache(self) -> None:
        self._sequences = SequenceTable(self.max_num_seqs)
        self._cache = PagedKVCache(self.config.num_hidden_layers)

    def _admit(self) -> None:
        """Give rows to waiting requests, in order of arrival."""
        waiting, self._waiting = self._waiting, []
        table, new_requests = self._sequences, list[GenerationRequest]()
        for request in waiting:  # first, lest a new session takes the row of one that is back
            row = table.row_by_session.get(request.session)
            if row is None:
                new_requests.append(request)
            else:
                table.resume(row, request.ids)
                self._begin_turn(request, row)
        for request in new_requests:
            if not self._try_start(request):
                self._waiting.append(request)
        self._cache.resize(table.blocks.num_blocks)
        table.sync_storage(self._cache)

    def _try_start(self, request: GenerationRequest) -> bool:
        """Give a new session a row and the blocks known of it. Returns False if it has to wait."""
        table, length = self._sequences, len(request.ids)
        if not table.has_room:
            return False
        blocks, num_matched = table.blocks.match_prefix(request.ids)
        num_matched = min(num_matched, length - 1)  # the last token must be computed in any case
        num_cached = table.blocks.count_computed(blocks, num_matched)
        # A row that is reading the same prompt right now (the first of a group) is worth waiting
        # for, if that at least halves what is left to compute.
        if 2 * (num_matched - num_cached) >= length - num_cached:
            return False
        row, evicted = table.acquire(request.session)
        self.stats.evicted_sessions += evicted
        table.start(row, request.ids, blocks, num_cached)
        self._begin_turn(request, row)
        return True

    def _begin_turn(self, request: GenerationRequest, row: int) -> None:
        table, sampling = self._sequences, request.sampling
        table.turn_end[row] = min(request.prompt_length + sampling.max_tokens, self.max_len)
        table.set_sampling(row, sampling)
        table.stop_set[row] = request.stop_set
        table.is_active[row] = True

    # ---- steps

    async def _run_steps(self) -> None:
        while self._waiting or self._sequences.is_active.any():
            if self.model.training:  # it was trained since the last call
                self.model.eval()
            start_time = time.perf_counter()
            try:
                with limit_threads(self.threads):
                    self._admit()
                    num_ended = self._step()
            except torch.OutOfMemoryError as error:
                raise UserError(
                    "The device ran out of memory with a cache of "
                    f"{self._cache.num_blocks * BLOCK_TOKENS} "
                    f"tokens ({self._cache.nbytes / 2**30:.1f} GiB); lower max_num_seqs,"
                    " engine.max_model_len or engine.max_batched_tokens."
                ) from error
            self.stats.seconds += time.perf_counter() - start_time
            num_expected = len(self._waiting) + num_ended
            for _ in range(MAX_EVENT_LOOP_YIELDS):
                await asyncio.sleep(0)
                if len(self._waiting) >= num_expected:
                    break

    def _propagate_failure(self, task: asyncio.Task[None]) -> None:
        """Fail all calls because a step failed; what the cache holds then is not trusted."""
        if task.cancelled():
            for call in self._requests.values():
                call.future.cancel()
        elif (error := task.exception()) is not None:
            self._waiting = []
            self._reset_cache()
            for call in self._requests.values():
                if not call.future.done():
                    call.future.set_exception(error)

    def _step(self) -> int:
        """Compute what every active row lacks, and sample where that is complete. Returns the
        number of turns that have ended."""
        table = self._sequences
        rows = np.flatnonzero(table.is_active)
        counts = self._split_token_budget(table.length[rows] - table.num_cached[rows])
        rows, counts = rows[counts > 0], counts[counts > 0]
        row_order = order_rows(table.num_cached[rows], counts)
        rows, counts = rows[row_order], counts[row_order]
        starts, lengths = table.num_cached[rows], table.length[rows]
        complete = starts + counts == lengths
        sampling = rows[complete]
        logits_indices = np.cumsum(counts)[complete] - 1
        ids, logprobs = self._forward(rows, counts, sampling, logits_indices)
        table.advance(rows, counts)
        table.append(sampling, ids, logprobs)
        self.stats.sampled_tokens += len(sampling)
        self.stats.prefilled_tokens += int((table.turn_start[rows] - starts).clip(0, counts).sum())
        self.stats.forwards += 1
        self._stream_tokens(sampling, ids)
        return self._finish_turns(sampling, ids, logprobs)

    def _stream_tokens(self, rows: IntArray, ids: IntArray) -> None:
        """Tell the followers of calls the tokens just sampled for them."""
        for call in self._streaming_requests.values():
            row = self._sequences.row_by_session.get(call.session)
            if call.on_token is not None and row is not None and not call.future.done():
                for token in ids[rows == row].tolist():
                    call.on_token(token)

    def _split_token_budget(self, num_uncomputed: IntArray) -> IntArray:
        """Return the number of tokens that each row computes: one if it decodes. The others, in
        their order, share what is left of `max_batched_tokens`, at least one token. 0 for those
        that wait, so that a prompt is computed as a whole where it can be."""
        is_long = num_uncomputed > 1
        prefill_tokens = np.where(is_long, num_uncomputed, 0)
        budget = max(self.max_batched_tokens - int((~is_long).sum()), 1)
        offsets = np.cumsum(prefill_tokens) - prefill_tokens
        return np.where(is_long, (budget - offsets).clip(0, prefill_tokens), 1)

    def _forward(
        self, rows: IntArray, counts: IntArray, sampling: IntArray, logits_indices: IntArray
    ) -> tuple[IntArray, Any]:
        """Run one forward of the model and sample from it. Returns ids and log-probabilities, on
        the host."""
        table, device = self._sequences, self.model.device
        draws = draw_uniforms(table.seed[sampling], table.length[sampling])
        row_parameters = np.stack([table.temperature[sampling], draws, *table.limits[:, sampling]])
        truncated = table.is_truncated[sampling]
        logits = forward(self.model, self._cache, table, rows, counts, logits_indices)
        with torch.inference_mode():
            ids, logprobs = sample_rows(logits, to_device(row_parameters, device), truncated)
            # float64 holds both exactly, so that one copy, and one wait, brings them here.
            host = torch.stack([ids.double(), logprobs.double()]).cpu().numpy()
        return host[0].astype(np.int64), host[1]

    def _finish_turns(self, rows: IntArray, ids: IntArray, logprobs: Any) -> int:
        """Complete the calls whose turn the tokens just sampled have ended, and return their
        number."""
        table = self._sequences
        is_eos = self._is_eos[ids]
        is_full = table.length[rows] == table.turn_end[rows]
        maybe_stop = self._stop_matcher.can_complete[table.stop_set[rows], ids]
        is_broken = ~np.isfinite(logprobs)
        num_active = int(table.is_active.sum())
        for i in np.flatnonzero(is_eos | is_full | maybe_stop | is_broken):
            row = int(rows[i])
            start, end = int(table.turn_start[row]), int(table.length[row])
            request = self._requests[table.owner[row] or ""]
            if request.future.cancelled():  # its caller is about to release it
                continue
            if is_broken[i]:
                self._fail_request(row, request)
                continue
            turn = table.read_tokens(row, request.prompt_length, end).tolist()
            if is_eos[i]:
                reason = StopReason.EOS
            elif maybe_stop[i] and self._stop_matcher.is_complete(turn, request.sampling.stop):
                reason = StopReason.STOP
            elif is_full[i]:
                reason = StopReason.LENGTH
            else:
                continue
            table.finish_turn(row)
            logprobs_turn = request.logprobs + table.read_logprobs(row, start, end).tolist()
            text = self._stop_matcher.decode(turn)
            append_version_span(request.version_spans, self.version, end - start)
            completion = Completion(turn, logprobs_turn, text, reason, request.version_spans)
            request.future.set_result(completion)
        return num_active - int(table.is_active.sum())

    def _fail_request(self, row: int, request: GenerationRequest) -> None:
        position = int(self._sequences.length[row]) - 1
        self._sequences.invalidate(row)
        request.future.set_exception(
            FloatingPointError(
                f"the model's logits for position {position} of session {request.session!r} are "
                "not finite: its weights or activations hold NaN or infinity"
            )
        )
