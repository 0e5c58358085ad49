"""Rollouts on questions of BFCL: one turn of calls, or a conversation whose calls are executed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.calls import locate_observations
from fieldcraft.dialects.tool_names import ToolNameMap
from fieldcraft.environments.base import EnvironmentContractError
from fieldcraft.environments.guards import truncate_middle
from fieldcraft.environments.turns import Policy, sample_turn_into
from fieldcraft.extensions.external_envs.bfcl.prompts import ToolConversation
from fieldcraft.extensions.external_envs.bfcl.questions import BfclQuestion, Schema
from fieldcraft.extensions.external_envs.worker_process import WorkerProcess
from fieldcraft.records.timeline import track_activity
from fieldcraft.sampling import StopReason
from fieldcraft.types import (
    Author,
    CallOutcome,
    CallRecord,
    MalformedCall,
    Segment,
    Status,
    Task,
    ToolCall,
    ToolCalls,
    Trajectory,
    UserError,
)

FAILURE_PREFIX = "Error during execution"  # of the package
WireCalls = list[tuple[str, dict[str, Any]]]


@dataclass
class BfclContext:
    """Prompts, budget and worker that all rollouts share. `worker` has the checkers and the
    simulators."""

    conversation: ToolConversation
    budget: BudgetConfig
    worker: WorkerProcess
    start_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask_worker(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request to the worker, which is started again if it has exited."""
        async with self.start_lock:
            if not self.worker.is_alive:
                await self.worker.start()
        return await self.worker.send_request(request)


@dataclass
class BfclRollout:
    """Growing trajectory on a question. `tools` are those that the model has now."""

    context: BfclContext
    question: BfclQuestion
    trajectory: Trajectory
    policy: Policy
    session: str
    key: str
    tools: list[Schema] = field(init=False)

    def __post_init__(self) -> None:
        self.tools = [*self.question.tools]

    # -- one turn ------------------------------------------------------------------------------

    async def answer(self) -> dict[str, Any]:
        """Sample the answer, and return the verdict on its calls, which are not executed. As in the
        package, a turn that the budget ends is judged by the calls that it has."""
        self._append(Author.PROMPT, self._encode_start())
        has_ended = await self._sample_turn()
        if self.trajectory.segments[-1].author is Author.PROMPT:
            return {"valid": False, "error": "the prompt left no room for an answer"}
        calls = self._parse_turn()
        self.trajectory.calls += [_record_call(call, "") for call in calls]
        if has_ended:
            self._finish(calls)
        request = {"check": self.question.id, "calls": _to_wire(calls)}
        return await self.context.ask_worker(request)

    # -- several turns -------------------------------------------------------------------------

    async def converse(self) -> dict[str, Any]:
        """Run the conversation, and return the verdict on it."""
        executed, error = await self._run_turns()
        if error:
            return {"valid": False, "error": error}
        self._finish(())
        return await self.context.ask_worker({"check": self.question.id, "turns": executed})

    async def _run_turns(self) -> tuple[list[list[WireCalls]], str]:
        """Run all turns. Return the executed calls of each turn, and the limit that ended the
        conversation early or ""."""
        executed: list[list[WireCalls]] = []
        for number, messages in enumerate(self.question.turns):
            if number:
                self._append_user_turn(number, messages[-1]["content"])
            else:
                self._append(Author.PROMPT, self._encode_start())
            executed.append([])
            if not await self._run_steps(executed):
                return executed, f"turn {number} did not end within the limits"
        return executed, ""

    async def _run_steps(self, executed: list[list[WireCalls]]) -> bool:
        """Sample messages and execute their calls until one has none. Return False if a limit ends
        the turn. As in the package, a message with a malformed call has none."""
        for _ in range(self.question.max_steps + 1):
            if not await self._sample_turn():
                return False
            calls = self._parse_turn()
            if not (wire := _to_wire(calls)):
                self.trajectory.calls += [_record_call(call, "") for call in calls]
                return True
            executed[-1].append(wire)
            await self._execute(calls, [step for turn in executed for step in turn])
        self.trajectory.status = Status.TRUNCATED
        return False

    async def _execute(self, calls: ToolCalls, steps: Sequence[WireCalls]) -> None:
        start = time.perf_counter()
        with track_activity("tools"):
            reply = await self._ask_simulators("execute", steps)
        seconds = (time.perf_counter() - start) / len(calls)
        if len(reply["results"]) != len(calls):
            raise EnvironmentContractError(f"a call could not be executed: {reply.get('error')}")
        dialect, limit = self.dialect, self.context.budget.max_observation_tokens
        positions = locate_observations(calls)
        for call, result, position in zip(calls, reply["results"], positions, strict=True):
            text, cut = truncate_middle(result, limit, dialect.tokenizer, dialect.escape_result)
            self.trajectory.calls.append(_record_call(call, text, seconds, cut))
            ids = dialect.encode_observation(text, position)
            rendered = dialect.render_observation(text, position)
            self.trajectory.segments.append(Segment(Author.TOOL, ids, rendered))

    async def _ask_simulators(self, kind: str, steps: Sequence[WireCalls]) -> dict[str, Any]:
        """Return the reply of the simulators, in which all steps of the conversation are
        executed."""
        return await self.context.ask_worker({kind: self.question.id, "steps": steps})

    def _append_user_turn(self, number: int, message: str) -> None:
        """Append a message of the user. If it adds tools, the conversation so far is read again
        below a prompt with all tools, as a chain of its own."""
        reply = self.context.conversation.encode_reply(message)
        added = self.question.added_tools.get(number, ())
        if not added:
            self._append(Author.TOOL, reply)
            return
        self.tools += added
        first = self.trajectory.folds[-1] if self.trajectory.folds else 0
        chain = self.trajectory.segments[first:]
        opening = len(self._start_ids)
        past = [token for segment in chain for token in segment.ids][opening:]
        self.trajectory.folds.append(len(self.trajectory.segments))
        self._append(Author.PROMPT, [*self._encode_start(), *past, *reply])

    # -- parts of both -------------------------------------------------------------------------

    @property
    def dialect(self) -> Any:
        return self.context.conversation.dialect

    def _encode_start(self) -> list[int]:
        """Return the prompt of the first turn with the present tools. Raises
        EnvironmentContractError for texts that the chat template cannot show."""
        try:
            messages = self.question.turns[0]
            self._start_ids = self.context.conversation.encode_start(messages, self.tools)
        except UserError as error:  # a mistake in one question, not of the user
            raise EnvironmentContractError(str(error)) from error
        return self._start_ids

    def _append(self, author: Author, ids: list[int]) -> None:
        text = self.dialect.tokenizer.decode(ids)
        self.trajectory.segments.append(Segment(author, ids, text))

    async def _sample_turn(self) -> bool:
        """Sample a turn. Return False if the budget ends it."""
        stop = self.dialect.stop_strings
        position = (self.policy, self.trajectory, self.session, self.key, self.context.budget)
        return await sample_turn_into(*position, stop) is not StopReason.LENGTH

    def _parse_turn(self) -> ToolCalls:
        """Return the calls of the last turn, of which there may be none."""
        parsed = self.dialect.parse([self.trajectory.segments[-1].text])
        if not isinstance(parsed, tuple):
            return ()
        names = ToolNameMap(Task("", "", ()), self.tools)
        return tuple(map(names.to_canonical, parsed))

    def _finish(self, calls: ToolCalls) -> None:
        """End the trajectory with the text of its last turn."""
        text = self.context.conversation.chat.strip_turn(self.trajectory.segments[-1].text)
        self.trajectory.answer = text or None
        self.trajectory.status = Status.ANSWERED if text else Status.NO_ANSWER
        self.trajectory.well_formed = bool(text) and all(
            isinstance(call, ToolCall) for call in calls
        )


def _to_wire(calls: ToolCalls) -> WireCalls | None:
    """Return calls for the worker; None if one of them cannot be read."""
    wire: WireCalls = []
    for call in calls:
        if isinstance(call, MalformedCall):
            return None
        wire.append((call.tool, call.arguments))
    return wire


def _record_call(
    call: ToolCall | MalformedCall, observation: str, seconds: float = 0.0, cut: int = 0
) -> CallRecord:
    if isinstance(call, MalformedCall):
        return CallRecord(
            call.tool, {}, call.reason, CallOutcome.MALFORMED, seconds, fault=call.fault
        )
    is_failure = observation.startswith(FAILURE_PREFIX)
    outcome = CallOutcome.FAILED if is_failure else CallOutcome.OK
    return CallRecord(call.tool, call.arguments, observation, outcome, seconds, cut=cut)
