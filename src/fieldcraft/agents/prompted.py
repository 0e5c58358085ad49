"""ReAct as a text protocol: a prompt tells a model that was not trained to act how to act.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fieldcraft.agents.chat import NOTHING, Chat, Message, SeatUse, seed_of
from fieldcraft.dialects.boxes import last_box
from fieldcraft.dialects.thoughts import reasoning_and_reply
from fieldcraft.endpoints.openai import EndpointError, Reply, Usage
from fieldcraft.envs.guards import ToolDefect, TooSlow, guarded
from fieldcraft.envs.opening import open_tools
from fieldcraft.sampling import WHOLE, Truncation
from fieldcraft.types import (
    Action,
    Answer,
    AnyTool,
    Malformed,
    Observation,
    Step,
    Task,
    Thought,
    Tool,
    ToolError,
    ToolUnavailable,
)

WITHOUT_TOOLS = """\
Answer the user's question from what you know. Reason step by step, for as long as the question \
needs: recall what you know, check it, and correct yourself where you were wrong. Then answer. \
Write exactly this:

Thought: your whole reasoning
Answer: the answer alone, as short as it can be"""

WITH_TOOLS = """\
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

Schema = dict[str, Any]  # of a tool, as chat templates take it
OBSERVATION = "Observation:"
STOP = (f"\n{OBSERVATION}",)
# `Thought:`, `**Action 2:**`, `Final Answer:` and the like, at the beginning of a line
MARK = re.compile(
    r"^[ \t>*#]*(thought|action|observation|(?:final )?answer)[ \t]*\d*[ \t*]*:[ \t*]*",
    re.IGNORECASE | re.MULTILINE,
)


class End(StrEnum):
    """End of an attempt."""

    ANSWERED = "answered"
    CUT = "cut off by the limit of tokens"
    MALFORMED = "neither an action nor an answer"
    TOO_MANY = "more actions than allowed"
    TOO_MANY_PLANS = "no answer passed after the last plan"
    TOOL_FAILED = "the tool failed"
    REQUEST_FAILED = "the request failed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a question: its steps as text, how it ended, what it used, and whether its
    answer is right, where that was graded."""

    steps: tuple[Step, ...]
    end: End
    detail: str = ""  # of a failure
    usage: Usage = NOTHING
    seats: Mapping[str, SeatUse] = field(default_factory=dict)  # of a team
    right: bool | None = None

    @property
    def answer(self) -> str | None:
        last = self.steps[-1] if self.steps else None
        return last.text if isinstance(last, Answer) else None

    @property
    def acts(self) -> bool:
        return any(isinstance(step, Action) for step in self.steps)

    @property
    def failed(self) -> bool:
        """Return whether it ended for a reason that the model did not cause."""
        return self.end in (End.TOOL_FAILED, End.REQUEST_FAILED)


@dataclass(frozen=True, slots=True)
class Turn:
    """Content of one reply. `kept` is its text up to the end of the move."""

    thought: str
    move: Action | Answer | Malformed
    kept: str


@dataclass(frozen=True, kw_only=True)
class Prompted:
    """The workflow: a chat model, the tools it may use, and what one attempt may spend.

    Without tools the model is asked to answer from what it knows.
    """

    chat: Chat
    tools: Sequence[AnyTool]
    max_calls: int
    turn_tokens: int
    call_seconds: float  # of one call, of opening and of closing a tool
    temperature: float
    truncation: Truncation = WHOLE

    async def attempt(self, task: Task, key: str) -> Attempt:
        """Let the model think, act and answer. `key` fixes the seeds of its requests.

        A request that fails, or a tool that is not there, ends the attempt with its cause. What a
        tool answers, also to a call with wrong arguments, is shown to the model and never parsed.
        """
        try:
            async with open_tools(self.tools, task, self.call_seconds) as tools:
                return await self._attempt(task, key, tools)
        except ToolDefect as error:
            return Attempt((), End.TOOL_FAILED, str(error))

    async def _attempt(self, task: Task, key: str, tools: Mapping[str, Tool]) -> Attempt:
        schemas = [tool.schema for tool in self.tools]
        asked = with_tools(schemas, self.max_calls) if schemas else WITHOUT_TOOLS
        # One message of the user's: some models know no system message.
        messages = [{"role": "user", "content": f"{asked}\n\nQuestion: {task.question}"}]
        steps: list[Step] = []
        usage = NOTHING

        def ended(end: End, detail: str = "") -> Attempt:
            return Attempt(tuple(steps), end, detail, usage)

        for number in range(self.max_calls + 1):
            try:
                reply = await self._ask(messages, f"{key}:{number}")
            except EndpointError as error:
                return ended(End.REQUEST_FAILED, str(error))
            usage += reply.usage
            turn = read_turn(reply.text, schemas, reply.reasoning)
            # A server that ignores stop strings may have cut what follows a whole action.
            if reply.finish == "length" and not isinstance(turn.move, Action):
                return ended(End.CUT)
            if turn.thought:
                steps.append(Thought(turn.thought))
            match turn.move:
                case Malformed(reason):
                    return ended(End.MALFORMED, reason)
                case Answer() as answer:
                    steps.append(answer)
                    return ended(End.ANSWERED)
                case Action() as action:
                    steps.append(action)
            if number == self.max_calls:
                break
            try:
                asked_tool = tools[action.tool](**action.arguments)
                observed = await guarded(asked_tool, self.call_seconds)
            except (ToolUnavailable, TooSlow) as error:
                return ended(End.TOOL_FAILED, str(error))
            except ToolError as error:  # as in rollouts: it may correct itself
                observed = str(error)
            steps.append(Observation(observed))
            messages += [
                {"role": "assistant", "content": turn.kept},
                {"role": "user", "content": f"{OBSERVATION} {observed}"},
            ]
        return ended(End.TOO_MANY)

    async def _ask(self, messages: list[Message], key: str) -> Reply:
        return await self.chat.chat(
            messages,
            max_tokens=self.turn_tokens,
            temperature=self.temperature,
            truncation=self.truncation,
            stop=STOP if self.tools else (),
            seed=seed_of(key),
        )


def with_tools(schemas: Sequence[Schema], max_calls: int) -> str:
    """Return the instruction that describes the tools."""
    first = schemas[0]["function"]
    arguments = dict.fromkeys(first["parameters"]["properties"], "...")
    return WITH_TOOLS.format(
        example=f"{first['name']} {json.dumps(arguments)}",
        calls=max_calls,
        tools="\n".join(json.dumps(schema["function"]) for schema in schemas),
    )


def read_turn(text: str, schemas: Sequence[Schema], reasoning: str = "") -> Turn:
    """Read the thought and the first action or answer of a turn; `schemas` are those of the tools.

    Without tools the thought is the reasoning of a model that reasons before it writes: what it
    writes afterwards is a summary. With tools it is what the model writes, since its reasoning also
    weighs how to write a call; only where it writes none, its reasoning is the thought.
    """
    reasoned, text = reasoning_and_reply(text)
    reasoning = reasoning or reasoned
    marks = [mark for mark in MARK.finditer(text) if mark[1].lower() != "thought"]
    said = text[: marks[0].start()] if marks else text
    written, reasoned = MARK.sub("", said).strip(), reasoning.strip()
    thought = (written or reasoned) if schemas else (reasoned or written)
    if not marks:
        return Turn(thought, Malformed("there is no line 'Action:' or 'Answer:'"), text)
    rest = text[marks[0].end() :]
    move: Action | Answer | Malformed
    match marks[0][1].lower():
        case "observation":
            move, end = Malformed("it made up an observation"), 0
        case "action":
            move, end = _read_action(rest, schemas)
        case _:
            following = MARK.search(rest)
            end = following.start() if following else len(rest)
            move = _read_answer(rest[:end])
    return Turn(thought, move, text[: marks[0].end() + end].strip())


def _read_action(text: str, schemas: Sequence[Schema]) -> tuple[Action | Malformed, int]:
    """Read the call at the beginning of `text`, and where it ends."""
    named = re.match(r"[`\"]?([\w-]+)[`\"]?\s*(?=\{)", text)
    if named is None:
        return Malformed("an action is a tool's name and its arguments as a JSON object"), 0
    try:
        arguments, end = json.JSONDecoder().raw_decode(text, named.end())
        # Python reads more than JSON allows: NaN, infinities, halves of characters.
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return Malformed("the arguments are not JSON"), 0
    if named[1] not in {schema["function"]["name"] for schema in schemas}:
        return Malformed("there is no such tool"), 0
    return Action(named[1], arguments), end  # the tool itself says what is wrong with them


def _read_answer(text: str) -> Answer | Malformed:
    """Read the first line that is not empty, or the content of its box."""
    line = next((line for line in text.splitlines() if line.strip(" *`")), "")
    answer = last_box(line) or line.strip(" *`")
    return Answer(answer) if answer else Malformed("the answer is empty")
