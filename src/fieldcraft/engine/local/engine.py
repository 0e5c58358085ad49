"""Local engine: continuous batching over a transformers model in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fieldcraft.engine.attention import require_plain_attention
from fieldcraft.engine.local.batch_plan import order_rows, to_device
from fieldcraft.engine.local.block_allocator import BLOCK_TOKENS, IntArray
from fieldcraft.engine.local.kv_cache import PagedKVCache, forward
from fieldcraft.engine.local.parity import require_cache_parity
from fieldcraft.engine.local.requests import (
    EngineStats,
    GenerationRequest,
    StopStringMatcher,
    append_version_span,
    find_model_turn_end,
)
from fieldcraft.engine.local.sampling import draw_uniforms, sample_rows
from fieldcraft.engine.local.sequences import SequenceTable
from fieldcraft.engine.sizes import resolve_session_tokens
from fieldcraft.engine.threads import limit_threads
from fieldcraft.engine.weights import snapshot_model, sync_snapshot
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import Tokenizer, UserError

# Maximum event-loop iterations yielded after a step that ended a turn. A tool that does not wait
# returns within them, so its rollout joins the next step.
MAX_EVENT_LOOP_YIELDS = 8


class LocalEngine:
    """Engine that runs many sessions on one model; implements `engine.base.PolicyEngine`.

    In each step one forward pass serves all active sessions: decoding sessions add one token,
    sessions with a new prompt or observation add its tokens. A session keeps its cache blocks while
    its tool runs, at no other cost. A new session reuses blocks with the same prefix, so a group's
    prompt, or instructions common to all prompts, are computed and stored once. Everything runs on
    the caller's event loop, and only while calls are pending.

    The cache grows in blocks of 32 tokens, up to `max_num_seqs` x `max_model_len` tokens.

    Training may change the model's weights between calls; `update_weights` must follow. After
    `snapshot_weights` the engine has a copy of the weights, and the model may be trained while
    calls generate.

    Args:
        model: transformers causal language model with plain attention, on any device.
        tokenizer: tokenizer of the model, for stop strings and texts.
        max_num_seqs: maximum number of sessions with a cache. Further sessions wait, or take the
            row of the session that has been idle longest (when it returns, its blocks are reused if
            they are still cached, and recomputed otherwise).
        max_model_len: maximum number of tokens of a session; the number of positions of the model
            if None.
        max_batched_tokens: maximum number of tokens of a forward pass; a longer prompt takes
            several steps.
        threads: CPU threads while the engine computes; torch's current setting if None.

    Raises:
        UserError: the model's attention is not plain, or its log-probabilities with a cache differ
            from those without.
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
        self._waiting: list[GenerationRequest] = []  # requests without a row, oldest first
        self._requests: dict[str, GenerationRequest] = {}  # pending requests by session
        self._streaming_requests: dict[
            str, GenerationRequest
        ] = {}  # pending requests with a token callback; none in training
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

        Of a session's cache, the prefix that matches `ids` is kept and the rest is dropped.
        `on_token` is called with each token as soon as it is sampled.

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
            raise ValueError(f"a token id is outside the vocabulary: {tokens.tolist()}")
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
            if self._requests.get(session) is request:  # else a newer one after a release
                del self._requests[session]
                self._streaming_requests.pop(session, None)

    def release(self, session: str) -> None:
        """Free a session's cache; a pending call is cancelled."""
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
        """Number of sessions that have a cache or are waiting for one."""
        return len(self._sequences.row_by_session.keys() | self._requests.keys())

    async def sleep(self) -> None:
        """Drop every cached session and free its memory.

        Raises RuntimeError while calls are generating.
        """
        if self._requests:
            raise RuntimeError("the engine cannot sleep while it is generating")
        self._reset_cache()

    async def snapshot_weights(self) -> None:
        """Sample from a copy of the model from now on, which `update_weights` updates."""
        self.model = snapshot_model(self._trained_model)
        self.config = self.model.config.get_text_config()

    async def update_weights(self, version: int) -> None:
        """Apply the model's changed weights: tokens sampled from now on have the new version.

        All cached sessions are dropped, so unfinished turns are recomputed with the new weights: no
        token depends on keys and values of two policies.
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
        """Save the tokens that a request has sampled so far; it needs a new row."""
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
        for request in waiting:  # returning sessions first, so that no new session takes their row
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
        """Assign a new session a row and its cached prefix blocks. Returns False if it has to
        wait."""
        table, length = self._sequences, len(request.ids)
        if not table.has_room:
            return False
        blocks, num_matched = table.blocks.match_prefix(request.ids)
        num_matched = min(num_matched, length - 1)  # the last token must always be computed
        num_cached = table.blocks.count_computed(blocks, num_matched)
        # Wait for a row that is computing the same prompt (the first of a group) if that at least
        # halves the remaining computation.
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
        """Fail all pending calls after a failed step, and reset the cache, which may be invalid."""
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
        """Compute the uncomputed tokens of every active row, and sample for complete rows. Returns
        the number of turns that have ended."""
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
        is_finite = np.isfinite(logprobs)
        self._stream_tokens(sampling[is_finite], ids[is_finite])
        running = table.is_active[sampling]
        return self._finish_turns(sampling[running], ids[running], logprobs[running])

    def _stream_tokens(self, rows: IntArray, ids: IntArray) -> None:
        """Call the token callbacks with the tokens just sampled. An exception of one ends its own
        request."""
        for call in self._streaming_requests.values():
            row = self._sequences.row_by_session.get(call.session)
            if call.on_token is not None and row is not None and not call.future.done():
                for token in ids[rows == row].tolist():
                    try:
                        call.on_token(token)
                    except Exception as error:  # noqa: BLE001 - it is raised in the caller
                        self._sequences.release(row)
                        call.future.set_exception(error)

    def _split_token_budget(self, num_uncomputed: IntArray) -> IntArray:
        """Return the number of tokens that each row computes. Decoding rows compute one. The other
        rows, in order, fill the rest of `max_batched_tokens`, at least one token, so that prompts
        are computed whole if possible; rows that have to wait compute 0."""
        is_long = num_uncomputed > 1
        prefill_tokens = np.where(is_long, num_uncomputed, 0)
        budget = max(self.max_batched_tokens - int((~is_long).sum()), 1)
        offsets = np.cumsum(prefill_tokens) - prefill_tokens
        return np.where(is_long, (budget - offsets).clip(0, prefill_tokens), 1)

    def _forward(
        self, rows: IntArray, counts: IntArray, sampling: IntArray, logits_indices: IntArray
    ) -> tuple[IntArray, Any]:
        """Run one forward pass of the model and sample from it. Returns ids and log-probabilities
        on the host."""
        table, device = self._sequences, self.model.device
        draws = draw_uniforms(table.seed[sampling], table.length[sampling])
        row_parameters = np.stack([table.temperature[sampling], draws, *table.limits[:, sampling]])
        truncated = table.is_truncated[sampling]
        logits = forward(self.model, self._cache, table, rows, counts, logits_indices)
        with torch.inference_mode():
            ids, logprobs = sample_rows(logits, to_device(row_parameters, device), truncated)
            # float64 represents both exactly, so one copy and one synchronisation suffice.
            host = torch.stack([ids.double(), logprobs.double()]).cpu().numpy()
        return host[0].astype(np.int64), host[1]

    def _finish_turns(self, rows: IntArray, ids: IntArray, logprobs: Any) -> int:
        """Complete the calls whose turn has ended with the tokens just sampled, and return their
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
            if is_broken[i]:
                self._fail_request(row, request)
                continue
            if request.future.cancelled():  # its caller is about to release it
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
        if not request.future.cancelled():
            error = f"the model's logits for position {position} of session {request.session!r}"
            request.future.set_exception(
                FloatingPointError(
                    f"{error} are not finite: its weights or activations contain NaN or infinity"
                )
            )
