"""Demonstrations as the messages of a chat, in the roles of the OpenAI interface, and back.

Thoughts stand at the beginning of an assistant's text, each between the tags of its role, as in
<think> and </think>. Calls are `tool_calls`, whose arguments are objects. The text behind the
thoughts of a message without calls is the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fieldcraft.data.records import Malformed
from fieldcraft.dialects.base import last_box
from fieldcraft.dialects.calls import read_call
from fieldcraft.types import Action, Answer, Observation, Role, Step, Thought

Message = dict[str, Any]

_BLOCK = re.compile(rf"\s*<({'|'.join(Role)})>(.*?)</\1>\s*", re.DOTALL)
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_REASONING = ("reasoning_content", "reasoning", "thinking")  # where servers put thoughts


class Chat(NamedTuple):
    """A question and what followed it."""

    system: str | None
    question: str
    steps: list[Step]


def normal(steps: Sequence[Step]) -> list[Step]:
    """Steps without the white space around thoughts and answers, which chats do not keep, and
    without empty thoughts."""
    found: list[Step] = []
    for step in steps:
        match step:
            case Thought(text, role):
                found += [Thought(text.strip(), role)] if text.strip() else []
            case Answer(text):
                found.append(Answer(text.strip()))
            case _:
                found.append(step)
    return found


# -- writing -----------------------------------------------------------------------------------


def written_thoughts(thoughts: Sequence[Thought]) -> str:
    """Thoughts between tags, a blank line after each."""
    return "".join(f"<{t.role}>\n{t.text.strip()}\n</{t.role}>\n\n" for t in thoughts)


def messages_of(steps: Sequence[Step]) -> list[Message]:
    """The messages of the assistant and of its tools. Several actions in a row are the calls of one
    message. Raises Malformed for an observation without a call."""
    found: list[Message] = []
    waiting: list[Message] = []  # calls without an observation yet
    for step in steps:
        if isinstance(step, Observation):
            if not waiting:
                raise Malformed("an observation without a call")
            call = waiting.pop(0)
            name = call["function"]["name"]
            answers = {"role": "tool", "tool_call_id": call["id"], "name": name}
            found.append({**answers, "content": step.text})
            continue
        if not found or found[-1]["role"] == "tool":
            found.append({"role": "assistant", "content": ""})
        match step:
            case Thought():
                found[-1]["content"] += written_thoughts([step])
            case Action(name, arguments):
                number = sum(len(m.get("tool_calls", ())) for m in found)
                function = {"name": name, "arguments": arguments}
                made = {"id": f"call_{number}", "type": "function", "function": function}
                found[-1].setdefault("tool_calls", []).append(made)
                waiting.append(made)
            case Answer(text):
                found[-1]["content"] += text.strip()
    for message in found:
        if message["role"] == "assistant":
            message["content"] = message["content"].strip()
    return found


# -- reading -----------------------------------------------------------------------------------


def read_chat(messages: Any) -> Chat:
    """The one question of a chat and the steps after it. Raises Malformed for any other chat."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise Malformed("no list of messages")
    roles = [m.get("role") for m in messages]
    if roles.count("user") != 1:
        raise Malformed(f"{roles.count('user')} messages of the user")
    at = roles.index("user")
    if any(role not in ("system", "developer") for role in roles[:at]):
        raise Malformed("a message of another role before the question")
    system = "\n\n".join(_text(m.get("content")) for m in messages[:at]) or None
    question = _text(messages[at].get("content")).strip()
    if not question:
        raise Malformed("an empty question")
    return Chat(system, question, steps_of(messages[at + 1 :]))


def steps_of(messages: Sequence[Message]) -> list[Step]:
    """The inverse of `messages_of`. It also reads calls between <tool_call> tags, thoughts in
    fields of their own, and an answer in a box or between <answer> tags."""
    found: list[Step] = []
    for number, message in enumerate(messages, start=1):
        match message.get("role"):
            case "assistant":
                found += _said(message, last=number == len(messages))
            case "tool" | "function":
                text = _text(message.get("content"))
                found += [Observation(part) for part in _RESPONSE.findall(text) or [text]]
            case role:
                raise Malformed(f"a message of the role {role}")
    return found


def read_thoughts(text: str) -> tuple[list[Step], str]:
    """The thoughts with which a text begins, and the text after them."""
    found: list[Step] = []
    if "<think>" not in text and "</think>" in text:  # the template wrote the first tag
        text = f"<think>{text}"
    while block := _BLOCK.match(text):
        if block[2].strip():
            found.append(Thought(block[2].strip(), Role(block[1])))
        text = text[block.end() :]
    return found, text.strip()


def _said(message: Message, last: bool) -> Iterator[Step]:
    """The steps of one message of the assistant."""
    apart = next((t for key in _REASONING if isinstance(t := message.get(key), str)), "")
    if apart.strip():
        yield Thought(apart.strip())
    thoughts, rest = read_thoughts(_text(message.get("content")))
    yield from thoughts
    given = message.get("tool_calls") or []
    if not isinstance(given, list):
        raise Malformed("calls that are no list")
    calls = [_action(call) for call in given]
    calls += [_parsed(call) for call in _CALL.findall(rest)]
    rest = _CALL.sub("", rest).strip()
    if "<tool_call>" in rest:
        raise Malformed("a call that cannot be read")
    if rest and (calls or not last):
        yield Thought(rest)
    yield from calls
    if rest and last and not calls:
        yield from _answered(rest)


def _answered(text: str) -> Iterator[Step]:
    """An answer, and the thought before it where it stands in a box or between tags."""
    boxed, tagged = last_box(text), _TAGGED.findall(text)
    if boxed is None and not tagged:
        yield Answer(text)
        return
    before = text.rpartition("\\boxed" if boxed is not None else "<answer>")[0]
    if before.strip():
        yield Thought(before.strip())
    yield Answer(boxed if boxed is not None else tagged[-1].strip())


def _action(call: Any) -> Action:
    match call:
        case {"function": {"name": str(name), "arguments": dict(arguments)}}:
            return Action(name, filled(arguments))
        case {"function": {"name": str(name), "arguments": str(text)}}:
            return _parsed(json.dumps({"name": name, "arguments": _json(text)}))
    raise Malformed("a call that cannot be read")


def _parsed(text: str) -> Action:
    call = read_call(text)
    if not isinstance(call, Action):
        raise Malformed("a call that cannot be read")
    return call


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed("a call that cannot be read") from error


def filled(value: Any) -> Any:
    """A value of a table without the keys that its row leaves empty: a column of objects has the
    keys of all rows."""
    if isinstance(value, dict):
        return {key: filled(inner) for key, inner in value.items() if inner is not None}
    return [filled(inner) for inner in value] if isinstance(value, list) else value


def _text(content: Any) -> str:
    """The text of a message, which may be in parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
