"""Conversation of an external agent with the policy in a rollout, as chains of a trajectory."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.environments.turns import Policy, sample_turn_into
from fieldcraft.extensions.external_envs.conversation_renderer import (
    ConversationRenderer,
    find_stop_string,
)
from fieldcraft.extensions.external_envs.messages import AssistantMessage, TurnRequest
from fieldcraft.extensions.external_envs.protocol import ChatMessage
from fieldcraft.extensions.external_envs.refusals import (
    RequestRejectedError,
    make_context_error,
    make_final_error,
)
from fieldcraft.records.chains import concat_ids
from fieldcraft.sampling import StopReason
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Task, Trajectory


@dataclass(frozen=True, slots=True)
class PolicyReply:
    """Turn as a message, and its tokens. `call_ids` are the ids of its calls, in order: a result
    names the call that it answers. `stop_string` is the string of the request that ended it."""

    message: AssistantMessage
    call_ids: tuple[str, ...]
    stop_reason: StopReason
    stop_string: str | None
    prompt_tokens: int
    completion_tokens: int


@dataclass(slots=True, eq=False)
class ConversationBranch:
    """Sequence of segments that the policy read and wrote. It has one writer at a time."""

    trajectory: Trajectory
    session: str
    key: str
    busy: bool = False

    @property
    def ids(self) -> list[int]:
        return concat_ids(self.trajectory.segments)


@dataclass(slots=True, eq=False)
class PendingToolCall:
    """Call in a turn of the policy."""

    tool: str
    arguments: str
    started: float
    record: CallRecord | None = None

    def set_result(self, observation: str, outcome: CallOutcome) -> None:
        """Set the result. Only the first one counts, because later requests repeat it."""
        if self.record is None:
            seconds = time.perf_counter() - self.started
            arguments = json.loads(self.arguments)
            self.record = CallRecord(self.tool, arguments, observation, outcome, seconds)


@dataclass
class AgentConversation:
    """State of all requests of one rollout.

    A request whose ids start with all the ids of a chain continues that chain, the longest if
    several match. Any other request starts a new chain. So each token is stored once, directly
    after the tokens that the policy read when it sampled it.
    """

    task: Task
    policy: Policy
    renderer: ConversationRenderer
    budget: BudgetConfig
    max_turns: int  # maximum number of turns of the rollout
    session: str
    key: str
    budget_exhausted: bool = False  # the budget truncated or rejected a turn
    failure: Exception | None = None  # error of the engine, which the agent cannot handle
    branches: list[ConversationBranch] = field(default_factory=list)
    reward: float | None = None  # posted by the agent
    closed: bool = False  # the rollout is over, though requests may still arrive
    tool_calls: dict[str, PendingToolCall] = field(default_factory=dict)
    _policy_messages: set[AssistantMessage] = field(default_factory=set)
    _sampled_ids: dict[tuple[tuple[int, ...], AssistantMessage], list[int]] = field(
        default_factory=dict
    )
    _in_flight: set[asyncio.Task[PolicyReply]] = field(default_factory=set)

    async def request_turn(self, request: TurnRequest) -> PolicyReply:
        """Sample the policy's next turn and return it.

        Raises RequestRejectedError if the budget is exhausted, the engine failed, or the rollout is
        over.
        """
        self.require_open()
        sampling = asyncio.create_task(self._sample_turn(request))
        self._in_flight.add(sampling)
        sampling.add_done_callback(self._in_flight.discard)
        await asyncio.wait([sampling])
        if sampling.cancelled():
            raise make_final_error("the rollout is over.")
        failure = sampling.exception()
        if isinstance(failure, Exception) and not isinstance(failure, RequestRejectedError):
            self.failure = failure
            raise make_final_error("the engine failed.") from failure
        return sampling.result()

    def require_open(self) -> None:
        """Raise RequestRejectedError if the rollout is over."""
        if self.closed:
            raise make_final_error("the rollout is over.")

    def encode_request(self, request: TurnRequest) -> list[int]:
        """Return the token ids of a request, up to the start of the policy's turn. Raises
        RequestRejectedError for messages that the template cannot render."""
        renderer = self.renderer.with_variables(request.chat_template_kwargs)
        return renderer.encode_prompt(
            request.messages, request.offered_tools, self._policy_messages, self._find_sampled_ids
        )

    async def _sample_turn(self, request: TurnRequest) -> PolicyReply:
        self._record_results(request.messages)
        ids = self.encode_request(request)
        self._reject_over_budget(ids)
        branch = self._find_or_open_branch(ids)
        available_tokens = min(
            self.budget.max_turn_tokens, self.budget.max_context_tokens - len(ids)
        )
        max_tokens = min(available_tokens, request.token_limit or available_tokens)
        limits = self.budget.model_copy(update={"max_turn_tokens": max_tokens})
        branch.busy = True
        try:
            reason = await sample_turn_into(
                self.policy,
                branch.trajectory,
                branch.session,
                branch.key,
                limits,
                request.stop_strings,
            )
        finally:
            branch.busy = False
        turn = branch.trajectory.segments[-1]
        self.budget_exhausted |= reason is StopReason.LENGTH and len(turn.ids) == available_tokens
        message = self.renderer.parse_turn(turn.text, request.stop_strings, request.offered_tools)
        self._policy_messages.add(message)
        self._sampled_ids[tuple(ids), message] = turn.ids
        return PolicyReply(
            message,
            self._register_calls(message),
            reason,
            find_stop_string(turn.text, request.stop_strings),
            len(ids),
            len(turn.ids),
        )

    def _register_calls(self, message: AssistantMessage) -> tuple[str, ...]:
        """Return the ids of the calls of a turn. They are unique in this rollout, and reproducible
        when it is run again."""
        now = time.perf_counter()
        # A chat template may render them, and some require nine letters and digits.
        offset = len(self.tool_calls)
        new_calls = {
            f"call{n:05}": PendingToolCall(*call, now)
            for n, call in enumerate(message.calls, offset)
        }
        self.tool_calls |= new_calls
        return tuple(new_calls)

    def _record_results(self, messages: Sequence[ChatMessage]) -> None:
        for message in messages:
            call = self.tool_calls.get(message.tool_call_id or "")
            if call is not None:
                # only Anthropic's interface tells that a call failed
                outcome = CallOutcome.FAILED if message.is_error else CallOutcome.OK
                call.set_result(message.text, outcome)

    def _find_sampled_ids(self, ids: Sequence[int], message: AssistantMessage) -> list[int] | None:
        return self._sampled_ids.get((tuple(ids), message))

    def _reject_over_budget(self, ids: Sequence[int]) -> None:
        turns = sum(len(b.trajectory.policy_turns) + b.busy for b in self.branches)
        if turns >= self.max_turns:
            self.budget_exhausted = True
            raise make_final_error(f"the rollout has used all of its {self.max_turns} turns.")
        if len(ids) >= self.budget.max_context_tokens:
            self.budget_exhausted = True
            raise make_context_error(len(ids), self.budget.max_context_tokens)

    def _find_or_open_branch(self, ids: list[int]) -> ConversationBranch:
        """Return the chain to which the policy's next turn is appended."""
        candidates = [
            candidate
            for candidate in self.branches
            if not candidate.busy and ids[: len(candidate.ids)] == candidate.ids
        ]
        if candidates:
            branch = max(candidates, key=lambda branch: len(branch.ids))
            self._append_segment(branch, Author.TOOL, ids[len(branch.ids) :])
        else:
            number = len(self.branches)
            branch = ConversationBranch(
                Trajectory(self.task), f"{self.session}/{number}", f"{self.key}/{number}"
            )
            self.branches.append(branch)
            self._append_segment(branch, Author.PROMPT, ids)
        return branch

    def _append_segment(self, branch: ConversationBranch, author: Author, ids: list[int]) -> None:
        if not ids:  # the same request again, because the engine failed
            return
        text = self.renderer.dialect.tokenizer.decode(ids)
        branch.trajectory.segments.append(Segment(author, ids, text))

    async def finish(self, trajectory: Trajectory) -> None:
        """Cancel open requests, reject later ones, and append the chains to a trajectory in the
        order of their start.

        Each chain ends with its last turn. The calls of the trajectory are the calls that have a
        result.
        """
        self.closed = True
        trajectory.calls += [
            call.record for call in self.tool_calls.values() if call.record is not None
        ]
        for sampling in self._in_flight:
            sampling.cancel()
        if self._in_flight:
            await asyncio.wait(self._in_flight)
        for branch in self.branches:
            self.policy.engine.release(branch.session)
            segments = branch.trajectory.segments
            while segments and segments[-1].author is not Author.POLICY:
                segments.pop()  # no turn was sampled for it
            if segments and trajectory.segments:
                trajectory.folds.append(len(trajectory.segments))
            trajectory.segments += segments
