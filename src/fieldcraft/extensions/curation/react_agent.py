"""ReAct as a text protocol: a prompt instructs a model without training on tools how to act.

user       how to write a turn, the tools, and the question
assistant  Thought: I need the director.
           Action: search {"query": "director of Solaris"}
user       Observation: result 1: ...
assistant  Thought: So he was born in Zavrazhye.
           Answer: Zavrazhye

(ReAct, arXiv 2210.03629, with arguments as JSON, so that any tool can be called.) Only the
model's text is parsed. A turn ends with its first action or answer. Anything after it, such as an
observation that the model made up, is cut off first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fieldcraft.dialects.calls import JSON_DECODER, parse_strict_json
from fieldcraft.dialects.marked_answers import find_last_boxed
from fieldcraft.dialects.thought_parser import split_reasoning
from fieldcraft.environments.guards import BrokenToolError
from fieldcraft.environments.tool_session import execute_call, open_session_tools
from fieldcraft.extensions.curation.chat_models import (
    NO_USAGE,
    ChatModel,
    MemberUsage,
    MessageDict,
    derive_request_seed,
)
from fieldcraft.sampling import NO_TRUNCATION, Truncation
from fieldcraft.tools.chat_client import ChatReply, ChatRequestError, TokenUsage
from fieldcraft.types import (
    Answer,
    AnyTool,
    CallOutcome,
    DemoStep,
    MalformedCall,
    Observation,
    Task,
    Thought,
    Tool,
    ToolCall,
)

CLOSED_BOOK_PROMPT = """\
Answer the user's question from what you know. Reason step by step, for as long as the question \
needs: recall what you know, check it, and correct yourself where you were wrong. Then answer. \
Write exactly this:

Thought: your whole reasoning
Answer: the answer alone, as short as it can be"""

TOOL_PROMPT_TEMPLATE = """\
Answer the user's question. Think about what you know and what is missing. Whenever you are not \
sure of a fact, do not guess: use a tool. In each turn write either

Thought: what you know and what you have to find out next
Action: the tool's name and its arguments as JSON, as in {example}

or, as soon as you know the answer,

Thought: what follows from what you know
Answer: the answer alone, as short as it can be

Stop after an action. The next message begins with "Observation:" and holds what the tool \
returned; never write an observation yourself. You may act at most {calls} times. These are the \
tools:
{tools}"""

ToolSchema = dict[str, Any]  # schema of a tool, as chat templates accept it
ANSWER_PREFIX = "Answer:"
OBSERVATION_PREFIX = "Observation:"
STOP_STRINGS = (f"\n{OBSERVATION_PREFIX}",)
# `Thought:`, `**Action 2:**`, `Final Answer:` and the like, at the start of a line
SECTION_PATTERN = re.compile(
    r"^[ \t>*#]*(thought|action|observation|(?:final )?answer)[ \t]*\d*[ \t*]*:[ \t*]*",
    re.IGNORECASE | re.MULTILINE,
)


class AttemptStatus(StrEnum):
    """End of an attempt."""

    ANSWERED = "answered"
    TRUNCATED = "cut off by the limit of tokens"
    MALFORMED = "neither an action nor an answer"
    TOO_MANY_CALLS = "more actions than allowed"
    TOO_MANY_PLANS = "no answer passed after the last plan"
    TOOL_FAILED = "the tool failed"
    REQUEST_FAILED = "the request failed"


@dataclass(frozen=True, slots=True)
class AgentAttempt:
    """One attempt at a question: its steps as text, status, usage and, if graded, correctness."""

    steps: tuple[DemoStep, ...]
    status: AttemptStatus
    detail: str = ""  # details of a failure
    usage: TokenUsage = NO_USAGE
    member_usage: Mapping[str, MemberUsage] = field(default_factory=dict)  # by member of a team
    is_correct: bool | None = None

    @property
    def answer(self) -> str | None:
        last = self.steps[-1] if self.steps else None
        return last.text if isinstance(last, Answer) else None

    @property
    def uses_tools(self) -> bool:
        return any(isinstance(step, ToolCall) for step in self.steps)

    @property
    def failed(self) -> bool:
        """Return whether the attempt ended for a reason that the model did not cause."""
        return self.status in (AttemptStatus.TOOL_FAILED, AttemptStatus.REQUEST_FAILED)


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """Parsed content of one reply. `consumed_text` is its text up to the end of the action."""

    thought: str
    action: ToolCall | Answer | MalformedCall
    consumed_text: str


@dataclass(frozen=True, kw_only=True)
class PromptedAgent:
    """Prompted ReAct agent: a chat model, its tools, and the budget of one attempt.

    Without tools the model is prompted to answer from its own knowledge.
    """

    model: ChatModel
    tools: Sequence[AnyTool]
    max_calls: int
    turn_tokens: int
    call_seconds: float  # timeout of one call, of opening and of closing a tool
    temperature: float
    truncation: Truncation = NO_TRUNCATION
    cut_observation: Callable[[str], str] = str  # to the budget; str: they are shown whole

    async def attempt(self, task: Task, key: str) -> AgentAttempt:
        """Let the model think, act and answer. `key` fixes the seeds of its requests.

        A failed request or an unavailable or broken tool ends the attempt with its cause. The
        result keeps its steps and usage so far. The response of a tool, also to a call with wrong
        arguments, is shown to the model and never parsed.
        """
        steps: list[DemoStep] = []
        usages: list[TokenUsage] = []
        try:
            async with open_session_tools(self.tools, task, self.call_seconds) as tools:
                status, detail = await self._act(task, key, tools, steps, usages)
        except BrokenToolError as error:
            status, detail = AttemptStatus.TOOL_FAILED, str(error)
        return AgentAttempt(tuple(steps), status, detail, sum(usages, NO_USAGE))

    async def _act(
        self,
        task: Task,
        key: str,
        tools: Mapping[str, Tool],
        steps: list[DemoStep],
        usages: list[TokenUsage],
    ) -> tuple[AttemptStatus, str]:
        """Append the steps of an attempt and the usage of its requests, and return its status and
        the details of a failure."""
        schemas = [tool.schema for tool in self.tools]
        instruction = render_tool_prompt(schemas, self.max_calls) if schemas else CLOSED_BOOK_PROMPT
        # A single user message: some models do not support system messages.
        messages = [{"role": "user", "content": f"{instruction}\n\nQuestion: {task.question}"}]
        for number in range(self.max_calls + 1):
            try:
                reply = await self._request(messages, f"{key}:{number}")
            except ChatRequestError as error:
                return AttemptStatus.REQUEST_FAILED, str(error)
            usages.append(reply.usage)
            parsed = parse_reply(reply.text, schemas, reply.reasoning)
            # A server that ignores stop strings may have truncated text after a complete action.
            if reply.finish_reason == "length" and not isinstance(parsed.action, ToolCall):
                return AttemptStatus.TRUNCATED, ""
            if parsed.thought:
                steps.append(Thought(parsed.thought))
            match parsed.action:
                case MalformedCall(reason):
                    return AttemptStatus.MALFORMED, reason
                case Answer() as answer:
                    steps.append(answer)
                    return AttemptStatus.ANSWERED, ""
                case ToolCall() as action:
                    steps.append(action)
            if number == self.max_calls:
                break
            executed = await execute_call(tools[action.tool], action, self.call_seconds)
            if executed.outcome is CallOutcome.UNAVAILABLE:
                return AttemptStatus.TOOL_FAILED, executed.observation
            # As in rollouts, the model reads an error, and may correct itself.
            observation = self.cut_observation(executed.observation)
            steps.append(Observation(observation))
            messages += [
                {"role": "assistant", "content": parsed.consumed_text},
                {"role": "user", "content": f"{OBSERVATION_PREFIX} {observation}"},
            ]
        return AttemptStatus.TOO_MANY_CALLS, ""

    async def _request(self, messages: list[MessageDict], key: str) -> ChatReply:
        return await self.model.chat(
            messages,
            max_tokens=self.turn_tokens,
            temperature=self.temperature,
            truncation=self.truncation,
            stop=STOP_STRINGS if self.tools else (),
            seed=derive_request_seed(key),
        )


def render_tool_prompt(schemas: Sequence[ToolSchema], max_calls: int) -> str:
    """Return the instruction that describes the tools."""
    first = schemas[0]["function"]
    arguments = dict.fromkeys(first["parameters"]["properties"], "...")
    return TOOL_PROMPT_TEMPLATE.format(
        example=f"{first['name']} {json.dumps(arguments)}",
        calls=max_calls,
        tools="\n".join(json.dumps(schema["function"]) for schema in schemas),
    )


def parse_reply(text: str, schemas: Sequence[ToolSchema], reasoning: str = "") -> ParsedReply:
    """Parse the thought and the first action or answer of a turn.

    Without tools the thought is the `reasoning` of a reasoning model, because its text is only a
    summary. With tools the thought is the written one, because the reasoning also considers how to
    write a call; if no thought is written, the reasoning is used.
    """
    reasoned, text = split_reasoning(text)
    reasoning = reasoning or reasoned
    marks = [mark for mark in SECTION_PATTERN.finditer(text) if mark[1].lower() != "thought"]
    preamble = text[: marks[0].start()] if marks else text
    thought_text, reasoned = SECTION_PATTERN.sub("", preamble).strip(), reasoning.strip()
    thought = (thought_text or reasoned) if schemas else (reasoned or thought_text)
    if not marks:
        return ParsedReply(thought, MalformedCall("there is no line 'Action:' or 'Answer:'"), text)
    rest = text[marks[0].end() :]
    action: ToolCall | Answer | MalformedCall
    match marks[0][1].lower():
        case "observation":
            action, end = MalformedCall("it made up an observation"), 0
        case "action":
            action, end = _parse_action(rest, schemas)
        case _:
            following = SECTION_PATTERN.search(rest)
            end = following.start() if following else len(rest)
            action = _parse_answer(rest[:end])
    return ParsedReply(thought, action, text[: marks[0].end() + end].strip())


def _parse_action(text: str, schemas: Sequence[ToolSchema]) -> tuple[ToolCall | MalformedCall, int]:
    """Parse the call at the start of `text`. Return it with the position of its end."""
    match = re.match(r"[`\"]?([\w-]+)[`\"]?\s*(?=\{)", text)
    if match is None:
        return MalformedCall("an action is a tool's name and its arguments as a JSON object"), 0
    try:
        _, end = JSON_DECODER.raw_decode(text, match.end())
        arguments = parse_strict_json(text[match.end() : end])
    except (ValueError, RecursionError):
        return MalformedCall("the arguments are not JSON"), 0
    if match[1] not in {schema["function"]["name"] for schema in schemas}:
        return MalformedCall("there is no such tool"), 0
    return ToolCall(match[1], arguments), end  # the tool itself validates the arguments


def _parse_answer(text: str) -> Answer | MalformedCall:
    """Parse the first line that is not empty, or the content of its box."""
    line = next((line for line in text.splitlines() if line.strip(" *`")), "")
    answer = find_last_boxed(line) or line.strip(" *`")
    return Answer(answer) if answer else MalformedCall("the answer is empty")
