"""A team: models in several seats, each with its own prompt, answer a question as one chain.

A team is a program in Python. It asks seats, calls tools, and writes what comes of that on a board:

    async def play(board):
        said = await board.ask("planner", thought=TEXT, plan=TEXT)
        board.write(said["thought"])
        board.write(said["plan"], Role.PLAN)
        await board.use("search")
        ...
        board.answer("Oslo")

The chain is a list of steps that any dialect can encode, so one model can learn to write all of it.
A seat answers in parts, such as `Plan: ...`. Only what a seat wrote is read, never a tool's text.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.agents.chat import NOTHING, Chat, Message, SeatUse, seed_of
from fieldcraft.agents.prompted import Attempt, End
from fieldcraft.dialects.thoughts import reasoning_and_reply
from fieldcraft.endpoints.openai import EndpointError, Reply
from fieldcraft.envs.guards import ToolDefect, TooSlow, guarded
from fieldcraft.envs.opening import open_tools
from fieldcraft.sampling import WHOLE, Truncation
from fieldcraft.types import (
    Action,
    Answer,
    AnyTool,
    Observation,
    Role,
    Step,
    Task,
    Thought,
    Tool,
    ToolError,
    ToolUnavailable,
    UserError,
)

TEXT: Sequence[str] = ()  # the choices of a part that may hold any text
TRIES = 2  # of a seat whose reply lacks a part
THOUGHT = "thought"  # the part that may also be what a model reasons before it writes

FORM = """\
{prompt}

Write these parts, each on a new line after its name:
{parts}

Question: {question}

{chain}"""
NOTHING_YET = "Nothing was done so far."
TOOL_PROMPT = "You are the agent of a team that calls the tool {name}."
SPOKEN = {
    Role.THINK: "Thought",
    Role.PLAN: "Plan",
    Role.REFLECT: "Reflection",
    Role.SUGGEST: "Suggested answer",
    Role.CHECK: "Double check",
    Role.SUMMARY: "Summary",
}
FENCED = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent of a team: its model, its prompt, and how it is sampled."""

    chat: Chat
    prompt: str
    temperature: float
    truncation: Truncation = WHOLE


class GaveUp(Exception):
    """The team ends without an answer."""

    def __init__(self, end: End, detail: str = "") -> None:
        super().__init__(f"{end}: {detail}")
        self.end, self.detail = end, detail


def no_fault(part: str, text: str) -> None:
    """Find no fault: any text will do."""


@dataclass(frozen=True, slots=True)
class Team:
    """The prompts of the seats, and the program that asks them. Every tool of a run has a seat as
    well, under the tool's name; a prompt for it is optional. `fault` is given the name and the text
    of a part that a seat wrote, and says what is wrong with it, as in `must not hold <plan>`."""

    prompts: Mapping[str, str]
    play: Callable[[Board], Awaitable[None]]
    tool_prompts: Mapping[str, str] = field(default_factory=dict)
    fault: Callable[[str, str], str | None] = no_fault

    def seat_prompts(self, tools: Sequence[AnyTool]) -> dict[str, str]:
        """Return the prompt of every seat in a run with these tools."""
        return {**self.prompts, **{tool.name: self._of_tool(tool) for tool in tools}}

    def _of_tool(self, tool: AnyTool) -> str:
        """Return the prompt of a tool's seat, with what the tool does and takes."""
        told = tool.schema["function"]
        own = self.tool_prompts.get(tool.name, TOOL_PROMPT.format(name=tool.name))
        arguments = json.dumps(told["parameters"])
        return f"{own}\n\n{told['description']}\nArguments of {tool.name}: {arguments}"


@dataclass(frozen=True, kw_only=True)
class Board:
    """One question: the chain so far, and whom the program may ask.

    `steps` and `used` are only added to. Every method raises GaveUp where the team cannot continue.
    """

    task: Task
    key: str  # fixes the seeds of all requests
    seats: Mapping[str, Seat]
    tools: Mapping[str, Tool]
    max_calls: int
    turn_tokens: int
    call_seconds: float
    fault: Callable[[str, str], str | None] = no_fault  # see `Team`
    steps: list[Step] = field(default_factory=list)
    used: dict[str, SeatUse] = field(default_factory=dict)

    @property
    def calls_left(self) -> int:
        """Return how often the team may still call a tool."""
        made = sum(isinstance(step, Action) for step in self.steps)
        return max(0, self.max_calls - made) if self.tools else 0

    def write(self, text: str, role: Role = Role.THINK) -> None:
        """Add a thought to the chain."""
        self.steps.append(Thought(text, role))

    def answer(self, text: str) -> None:
        """Add the answer, which ends the chain."""
        self.steps.append(Answer(text))

    async def ask(self, seat: str, /, **parts: Sequence[str]) -> dict[str, str]:
        """Ask a seat, and return what it says about the chain so far, part by part.

        A part is TEXT, or a list of choices of which the seat must take one. A seat whose reply
        lacks a part, or has one with a fault, is told so and asked once more.
        """
        messages = [{"role": "user", "content": self._form(seat, parts)}]
        for _ in range(TRIES):
            reply = await self._send(seat, messages)
            if reply.finish == "length":
                raise GaveUp(End.CUT, f"the seat '{seat}'")
            said = self._read(reply, parts)
            if isinstance(said, dict):
                return said
            messages += [
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": f"{said}. Write all parts again."},
            ]
        raise GaveUp(End.MALFORMED, f"the seat '{seat}': {said}")

    async def use(self, tool: str) -> str:
        """Let the seat of a tool think and write the arguments, then call the tool."""
        parameters = self.tools[tool].schema["function"]["parameters"]
        names = parameters.get("required", [])
        said = await self.ask(tool, **{THOUGHT: TEXT, **dict.fromkeys(names, TEXT)})
        arguments = {}
        for name in names:
            text = parameters["properties"][name].get("type") == "string"
            try:
                arguments[name] = said[name] if text else json.loads(said[name])
            except ValueError:
                wrong = f"the part '{_label(name)}:' is not JSON"
                raise GaveUp(End.MALFORMED, f"the seat '{tool}': {wrong}") from None
        self.write(said[THOUGHT])
        return await self.act(tool, **arguments)

    async def act(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool. The team reads why a call failed, unless the tool itself is not there."""
        if not self.calls_left:
            raise GaveUp(End.TOO_MANY)
        self.steps.append(Action(tool, arguments))
        try:
            observed = await guarded(self.tools[tool](**arguments), self.call_seconds)
        except (ToolUnavailable, TooSlow) as error:
            raise GaveUp(End.TOOL_FAILED, str(error)) from error
        except ToolError as error:
            observed = str(error)
        self.steps.append(Observation(observed))
        return observed

    def _form(self, seat: str, parts: Mapping[str, Sequence[str]]) -> str:
        if seat not in self.seats:
            raise UserError(
                f"the team asks the seat '{seat}', which it does not have: give it a prompt, or ask"
                f" one of {', '.join(self.seats)}."
            )
        return FORM.format(
            prompt=self.seats[seat].prompt,
            parts="\n".join(
                f"{_label(name)}: {'one of ' if choices else '...'}{', '.join(choices)}"
                for name, choices in parts.items()
            ),
            question=self.task.question,
            chain="\n".join(map(shown, self.steps)) or NOTHING_YET,
        )

    def _read(self, reply: Reply, parts: Mapping[str, Sequence[str]]) -> dict[str, str] | str:
        """Return the parts of a reply, or what is wrong with it."""
        said = read_parts(reply, parts)
        if isinstance(said, dict):
            for name, text in said.items():
                if (fault := self.fault(name, text)) is not None:
                    return f"The part '{_label(name)}:' {fault}"
        return said

    async def _send(self, name: str, messages: list[Message]) -> Reply:
        seat, requests = self.seats[name], sum(use.requests for use in self.used.values())
        usage, began = NOTHING, time.perf_counter()
        try:
            reply = await seat.chat.chat(
                messages,
                max_tokens=self.turn_tokens,
                temperature=seat.temperature,
                truncation=seat.truncation,
                seed=seed_of(f"{self.key}:{requests}"),
            )
            usage = reply.usage
        except EndpointError as error:
            raise GaveUp(End.REQUEST_FAILED, f"the seat '{name}': {error}") from error
        finally:
            use = SeatUse(1, time.perf_counter() - began, usage)
            self.used[name] = self.used[name] + use if name in self.used else use
        return reply


@dataclass(frozen=True, kw_only=True)
class Seated:
    """A team with models in its seats, the tools it may use, and what one attempt may spend."""

    team: Team
    seats: Mapping[str, Seat]
    tools: Sequence[AnyTool]
    max_calls: int
    turn_tokens: int  # of one reply
    call_seconds: float  # of one call, of opening and of closing a tool

    async def attempt(self, task: Task, key: str) -> Attempt:
        """Let the team answer. What it had written and used when it gave up is kept."""
        steps: list[Step] = []
        used: dict[str, SeatUse] = {}
        end, detail = End.MALFORMED, "the team ended without an answer"
        try:
            async with open_tools(self.tools, task, self.call_seconds) as tools:
                board = Board(
                    task=task,
                    key=key,
                    seats=self.seats,
                    tools=tools,
                    max_calls=self.max_calls,
                    turn_tokens=self.turn_tokens,
                    call_seconds=self.call_seconds,
                    fault=self.team.fault,
                    steps=steps,
                    used=used,
                )
                await self.team.play(board)
            if steps and isinstance(steps[-1], Answer):
                end, detail = End.ANSWERED, ""
        except GaveUp as error:
            end, detail = error.end, error.detail
        except ToolDefect as error:
            end, detail = End.TOOL_FAILED, str(error)
        usage = sum((use.usage for use in used.values()), NOTHING)
        return Attempt(tuple(steps), end, detail, usage, used)


def shown(step: Step) -> str:
    """Return a step as the seats read it."""
    match step:
        case Thought(text, role):
            return f"{SPOKEN[role]}: {text}"
        case Action(tool, arguments):
            return f"Call: {tool} {json.dumps(arguments, ensure_ascii=False)}"
        case Observation(text):
            return f"Observation: {text}"
        case Answer(text):
            return f"Answer: {text}"


def read_parts(reply: Reply, parts: Mapping[str, Sequence[str]]) -> dict[str, str] | str:
    """Return the parts of a reply, or what is wrong with it.

    Parts stand in their order, so that a text may hold the name of a part before it. Text before
    the first part, or else the reasoning of a model, is the thought where none is marked.
    """
    reasoned, text = reasoning_and_reply(reply.text)
    reasoning = reply.reasoning or reasoned
    marks: dict[str, re.Match[str]] = {}
    at = 0
    for name in parts:
        if mark := _mark(name).search(text, at):
            marks[name], at = mark, mark.end()
    begins = [mark.start() for mark in marks.values()]
    before = text[: begins[0]].strip() if begins else ""
    said = {}
    for name, choices in parts.items():
        value = before or reasoning.strip() if name == THOUGHT else ""
        if name in marks:
            end = next((begin for begin in begins if begin > marks[name].start()), len(text))
            value = _unfenced(text[marks[name].end() : end].strip())
        if not value:
            return f"There is no part '{_label(name)}:'"
        if choices:
            chosen = _choice(value, choices)
            if chosen is None:
                return f"The part '{_label(name)}:' must be one of {', '.join(choices)}"
            value = chosen
        said[name] = value
    return said


def _label(name: str) -> str:
    """Return a label such as `Suggested answer` for suggested_answer."""
    return name.replace("_", " ").capitalize()


def _mark(name: str) -> re.Pattern[str]:
    words = re.escape(name).replace("_", "[ _]")
    return re.compile(rf"^[ \t>*#]*{words}[ \t*]*:[ \t*]*", re.IGNORECASE | re.MULTILINE)


def _choice(value: str, choices: Sequence[str]) -> str | None:
    """Return the choice that a value begins with, the longest if several do."""
    for choice in sorted(choices, key=len, reverse=True):
        if re.match(rf"\W*{re.escape(choice)}(?!\w|\.\d)", value, re.IGNORECASE):
            return choice
    return None


def _unfenced(value: str) -> str:
    """Return the content of a fenced block that is the whole value."""
    fenced = FENCED.fullmatch(value)
    return fenced[1] if fenced else value
