"""Teams: several members, each a model with its own prompt, answer a question as one chain.

A team is a Python program. It prompts members, calls tools, and writes the results on a blackboard:

    async def run(board):
        reply = await board.ask("planner", thought=TEXT, plan=TEXT)
        board.write(reply["thought"])
        board.write(reply["plan"], ThoughtRole.PLAN)
        await board.use("search")
        ...
        board.answer("Oslo")

The chain is a list of steps that any dialect can encode, so one model can learn to write all of it.
A member answers in sections, such as `Plan: ...`. Only the text of members is parsed, never the
output of a tool.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.dialects.calls import parse_strict_json
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
from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus
from fieldcraft.sampling import NO_TRUNCATION, Truncation
from fieldcraft.tools.chat_client import ChatReply, ChatRequestError
from fieldcraft.types import (
    Answer,
    AnyTool,
    CallOutcome,
    DemoStep,
    Observation,
    Task,
    Thought,
    ThoughtRole,
    Tool,
    ToolCall,
    UserError,
)

TEXT: Sequence[str] = ()  # choices of a section that may contain any text
MAX_TRIES = 2  # requests to a member whose reply lacks a section
THOUGHT = "thought"  # the section that may also be the reasoning of a reasoning model

REQUEST_TEMPLATE = """\
{prompt}

Write these parts, each on a new line after its name:
{parts}

Question: {question}

{chain}"""
EMPTY_CHAIN = "Nothing was done so far."
TOOL_PROMPT_TEMPLATE = "You are the agent of a team that calls the tool {name}."
ROLE_LABELS = {
    ThoughtRole.THINK: "Thought",
    ThoughtRole.PLAN: "Plan",
    ThoughtRole.REFLECT: "Reflection",
    ThoughtRole.SUGGEST: "Suggested answer",
    ThoughtRole.CHECK: "Double check",
    ThoughtRole.SUMMARY: "Summary",
}
FENCED_PATTERN = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TeamMember:
    """One agent of a team: its model, prompt and sampling settings."""

    model: ChatModel
    prompt: str
    temperature: float
    truncation: Truncation = NO_TRUNCATION


class TeamGaveUpError(Exception):
    """The team ended without an answer."""

    def __init__(self, status: AttemptStatus, detail: str = "") -> None:
        super().__init__(f"{status}: {detail}")
        self.status, self.detail = status, detail


def accept_any(name: str, text: str) -> None:
    """Accept any text as the text of a section."""


@dataclass(frozen=True, slots=True)
class Team:
    """Prompts of the members, and the program that runs them.

    Every tool of a run also has a member, under the tool's name; its prompt is optional.
    `find_fault` takes the name and the text of a section that a member wrote, and returns what is
    wrong with it, as in `must not hold <plan>`, or None.
    """

    prompts: Mapping[str, str]
    run: Callable[[Blackboard], Awaitable[None]]
    tool_prompts: Mapping[str, str] = field(default_factory=dict)
    find_fault: Callable[[str, str], str | None] = accept_any

    def member_prompts(self, tools: Sequence[AnyTool]) -> dict[str, str]:
        """Return the prompt of every member in a run with these tools."""
        return {**self.prompts, **{tool.name: self._render_tool_prompt(tool) for tool in tools}}

    def _render_tool_prompt(self, tool: AnyTool) -> str:
        """Return the prompt of a tool's member, with the tool's description and arguments."""
        function = tool.schema["function"]
        prompt = self.tool_prompts.get(tool.name, TOOL_PROMPT_TEMPLATE.format(name=tool.name))
        arguments = json.dumps(function["parameters"])
        return f"{prompt}\n\n{function['description']}\nArguments of {tool.name}: {arguments}"


@dataclass(frozen=True, kw_only=True)
class Blackboard:
    """State of one question: the chain so far, and the members that the program may ask.

    `steps` and `usage` only grow. Every method raises TeamGaveUpError if the team cannot continue.
    """

    task: Task
    key: str  # fixes the seeds of all requests
    members: Mapping[str, TeamMember]
    tools: Mapping[str, Tool]
    max_calls: int
    turn_tokens: int
    call_seconds: float
    find_fault: Callable[[str, str], str | None] = accept_any  # see `Team`
    cut_observation: Callable[[str], str] = str  # see `PromptedAgent`
    steps: list[DemoStep] = field(default_factory=list)
    usage: dict[str, MemberUsage] = field(default_factory=dict)

    @property
    def calls_left(self) -> int:
        """Return the number of tool calls that the team has left."""
        num_calls = sum(isinstance(step, ToolCall) for step in self.steps)
        return max(0, self.max_calls - num_calls) if self.tools else 0

    def write(self, text: str, role: ThoughtRole = ThoughtRole.THINK) -> None:
        """Add a thought to the chain."""
        self.steps.append(Thought(text, role))

    def answer(self, text: str) -> None:
        """Add the answer, which ends the chain."""
        self.steps.append(Answer(text))

    async def ask(self, member: str, /, **sections: Sequence[str]) -> dict[str, str]:
        """Send the chain so far to a member, and return the sections of its reply by name.

        A section is TEXT, or a list of choices from which the member must select one. If a section
        is missing or faulty, the member receives the reason and is asked again.
        """
        messages = [{"role": "user", "content": self._render_request(member, sections)}]
        for _ in range(MAX_TRIES):
            reply = await self._request(member, messages)
            if reply.finish_reason == "length":
                raise TeamGaveUpError(AttemptStatus.TRUNCATED, f"the team member '{member}'")
            parsed = self._parse_reply(reply, sections)
            if isinstance(parsed, dict):
                return parsed
            messages += [
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": f"{parsed}. Write all parts again."},
            ]
        raise TeamGaveUpError(AttemptStatus.MALFORMED, f"the team member '{member}': {parsed}")

    async def use(self, tool: str) -> str:
        """Let the member of a tool think and write the arguments, then call the tool."""
        parameters = self.tools[tool].schema["function"]["parameters"]
        names = parameters.get("required", [])
        parsed = await self.ask(tool, **{THOUGHT: TEXT, **dict.fromkeys(names, TEXT)})
        arguments = {}
        for name in names:
            is_text = parameters["properties"][name].get("type") == "string"
            try:
                arguments[name] = parsed[name] if is_text else parse_strict_json(parsed[name])
            except (ValueError, RecursionError):
                error = f"the part '{_render_label(name)}:' is not JSON"
                raise TeamGaveUpError(
                    AttemptStatus.MALFORMED, f"the team member '{tool}': {error}"
                ) from None
        self.write(parsed[THOUGHT])
        return await self.act(tool, **arguments)

    async def act(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool, and return its observation, or the error message of a failed call.

        Raises TeamGaveUpError if the tool is unavailable, times out, or is broken, or if no calls
        are left.
        """
        if not self.calls_left:
            raise TeamGaveUpError(AttemptStatus.TOO_MANY_CALLS)
        call = ToolCall(tool, arguments)
        self.steps.append(call)
        try:
            executed = await execute_call(self.tools[tool], call, self.call_seconds)
        except BrokenToolError as error:
            raise TeamGaveUpError(AttemptStatus.TOOL_FAILED, str(error)) from error
        if executed.outcome is CallOutcome.UNAVAILABLE:
            raise TeamGaveUpError(AttemptStatus.TOOL_FAILED, executed.observation)
        observation = self.cut_observation(executed.observation)
        self.steps.append(Observation(observation))
        return observation

    def _render_request(self, member: str, sections: Mapping[str, Sequence[str]]) -> str:
        if member not in self.members:
            raise UserError(
                f"the team has no member '{member}': add its prompt, or ask"
                f" one of {', '.join(self.members)}."
            )
        return REQUEST_TEMPLATE.format(
            prompt=self.members[member].prompt,
            parts="\n".join(
                f"{_render_label(name)}: {'one of ' if choices else '...'}{', '.join(choices)}"
                for name, choices in sections.items()
            ),
            question=self.task.question,
            chain="\n".join(map(render_step, self.steps)) or EMPTY_CHAIN,
        )

    def _parse_reply(
        self, reply: ChatReply, sections: Mapping[str, Sequence[str]]
    ) -> dict[str, str] | str:
        """Return the sections of a reply, or what is wrong with it."""
        parsed = parse_sections(reply, sections)
        if isinstance(parsed, dict):
            for name, text in parsed.items():
                if (fault := self.find_fault(name, text)) is not None:
                    return f"The part '{_render_label(name)}:' {fault}"
        return parsed

    async def _request(self, name: str, messages: list[MessageDict]) -> ChatReply:
        member, requests = self.members[name], sum(use.requests for use in self.usage.values())
        usage, start = NO_USAGE, time.perf_counter()
        try:
            reply = await member.model.chat(
                messages,
                max_tokens=self.turn_tokens,
                temperature=member.temperature,
                truncation=member.truncation,
                seed=derive_request_seed(f"{self.key}:{requests}"),
            )
            usage = reply.usage
        except ChatRequestError as error:
            raise TeamGaveUpError(
                AttemptStatus.REQUEST_FAILED, f"the team member '{name}': {error}"
            ) from error
        finally:
            use = MemberUsage(1, time.perf_counter() - start, usage)
            self.usage[name] = self.usage[name] + use if name in self.usage else use
        return reply


@dataclass(frozen=True, kw_only=True)
class TeamAgent:
    """Team with a model for each member, its tools, and the budget of one attempt."""

    team: Team
    members: Mapping[str, TeamMember]
    tools: Sequence[AnyTool]
    max_calls: int
    turn_tokens: int  # limit of one reply
    call_seconds: float  # timeout of one call, of opening and of closing a tool
    cut_observation: Callable[[str], str] = str  # see `PromptedAgent`

    async def attempt(self, task: Task, key: str) -> AgentAttempt:
        """Let the team answer. If it gives up, the result keeps its steps and usage so far."""
        steps: list[DemoStep] = []
        member_usage: dict[str, MemberUsage] = {}
        status, detail = AttemptStatus.MALFORMED, "the team ended without an answer"
        try:
            async with open_session_tools(self.tools, task, self.call_seconds) as tools:
                board = Blackboard(
                    task=task,
                    key=key,
                    members=self.members,
                    tools=tools,
                    max_calls=self.max_calls,
                    turn_tokens=self.turn_tokens,
                    call_seconds=self.call_seconds,
                    find_fault=self.team.find_fault,
                    cut_observation=self.cut_observation,
                    steps=steps,
                    usage=member_usage,
                )
                await self.team.run(board)
            if steps and isinstance(steps[-1], Answer):
                status, detail = AttemptStatus.ANSWERED, ""
        except TeamGaveUpError as error:
            status, detail = error.status, error.detail
        except BrokenToolError as error:
            status, detail = AttemptStatus.TOOL_FAILED, str(error)
        usage = sum((use.usage for use in member_usage.values()), NO_USAGE)
        return AgentAttempt(tuple(steps), status, detail, usage, member_usage)


def render_step(step: DemoStep) -> str:
    """Return a step as the members read it."""
    match step:
        case Thought(text, role):
            return f"{ROLE_LABELS[role]}: {text}"
        case ToolCall(tool, arguments):
            return f"Call: {tool} {json.dumps(arguments, ensure_ascii=False)}"
        case Observation(text):
            return f"Observation: {text}"
        case Answer(text):
            return f"Answer: {text}"


def parse_sections(reply: ChatReply, sections: Mapping[str, Sequence[str]]) -> dict[str, str] | str:
    """Return the sections of a reply, or what is wrong with it.

    Sections are expected in order, so a text may contain the name of an earlier section. Without a
    marked thought, the thought is the text before the first section, or else the reasoning.
    """
    reasoned, text = split_reasoning(reply.text)
    reasoning = reply.reasoning or reasoned
    marks: dict[str, re.Match[str]] = {}
    position = 0
    for name in sections:
        if mark := _section_pattern(name).search(text, position):
            marks[name], position = mark, mark.end()
    starts = [mark.start() for mark in marks.values()]
    preamble = text[: starts[0]].strip() if starts else ""
    texts = {}
    for name, choices in sections.items():
        value = preamble or reasoning.strip() if name == THOUGHT else ""
        if name in marks:
            end = next((start for start in starts if start > marks[name].start()), len(text))
            value = _strip_fence(text[marks[name].end() : end].strip())
        if not value:
            return f"There is no part '{_render_label(name)}:'"
        if choices:
            chosen = _match_choice(value, choices)
            if chosen is None:
                return f"The part '{_render_label(name)}:' must be one of {', '.join(choices)}"
            value = chosen
        texts[name] = value
    return texts


def _render_label(name: str) -> str:
    """Return a label such as `Suggested answer` for suggested_answer."""
    return name.replace("_", " ").capitalize()


def _section_pattern(name: str) -> re.Pattern[str]:
    words = re.escape(name).replace("_", "[ _]")
    return re.compile(rf"^[ \t>*#]*{words}[ \t*]*:[ \t*]*", re.IGNORECASE | re.MULTILINE)


def _match_choice(value: str, choices: Sequence[str]) -> str | None:
    """Return the choice that a value starts with, the longest if several match."""
    for choice in sorted(choices, key=len, reverse=True):
        if re.match(rf"\W*{re.escape(choice)}(?!\w|\.\d)", value, re.IGNORECASE):
            return choice
    return None


def _strip_fence(value: str) -> str:
    """Return the content of a fenced block that is the whole value."""
    fenced = FENCED_PATTERN.fullmatch(value)
    return fenced[1] if fenced else value
