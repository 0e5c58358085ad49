"""Demonstrations as the messages of a chat, in the roles of the OpenAI interface, and back.

Thoughts stand at the beginning of an assistant's text, each between the tags of its role, as in
<think> and </think>. Calls are `tool_calls`, whose arguments are objects. The text behind the
thoughts of a message without calls is the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from fieldcraft.data.formats.fences import in_turns
from fieldcraft.data.formats.markup import refuse_markup
from fieldcraft.data.formats.meaning import refuse_unlearned_turn
from fieldcraft.data.formats.values import filled, parsed_json, result_text, text_of
from fieldcraft.data.records import Malformed, first
from fieldcraft.dialects.calls import read_call, read_turn
from fieldcraft.dialects.marked_answers import marked_answer
from fieldcraft.dialects.pairing import Label, Unpaired, order_of_calls
from fieldcraft.dialects.thoughts import OTHER_TAGS
from fieldcraft.types import Action, Answer, Observation, Role, Step, Thought
from fieldcraft.types import Malformed as Unreadable

Message = dict[str, Any]

_BLOCK = re.compile(rf"\s*<({'|'.join(Role)}|(?i:{'|'.join(OTHER_TAGS)}))>(.*?)</\1>\s*", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_RESPONSES = re.compile(rf"\s*(?:{_RESPONSE.pattern}\s*)+", re.DOTALL)
# Where servers put thoughts; of the last one, which has parts, others are the text.
_REASONING = ("reasoning_content", "reasoning", "thinking", "thought", "reasoning_details")


class Chat(NamedTuple):
    """A question and what followed it."""

    system: str | None
    question: str
    steps: list[Step]


def normal(steps: Sequence[Step]) -> list[Step]:
    """Return the steps without the white space around thoughts and answers, which chats do not
    keep, and without empty thoughts."""
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
    """Return the thoughts between tags, a blank line after each."""
    return "".join(f"<{t.role}>\n{t.text.strip()}\n</{t.role}>\n\n" for t in thoughts)


def messages_of(steps: Sequence[Step]) -> list[Message]:
    """Return the messages of the assistant and of its tools. Several actions in a row are the calls
    of one message. Raises Malformed for an observation without a call."""
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
    """Return the one question of a chat and the steps after it. Raises Malformed for any other
    chat."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise Malformed("no list of messages")
    roles = [m.get("role") for m in messages]
    if roles.count("user") != 1:
        raise Malformed(f"{roles.count('user')} messages of the user")
    at = roles.index("user")
    if any(role not in ("system", "developer") for role in roles[:at]):
        raise Malformed("a message of another role before the question")
    system = "\n\n".join(text_of(m.get("content")) for m in messages[:at]) or None
    question = text_of(messages[at].get("content")).strip()
    if not question:
        raise Malformed("an empty question")
    steps = steps_of(messages[at + 1 :])
    if not steps:
        raise Malformed("a question without a turn of the assistant")
    return Chat(system, question, steps)


def steps_of(messages: Sequence[Message]) -> list[Step]:
    """Read the steps of messages: the inverse of `messages_of`. It also reads calls between
    <tool_call> tags, thoughts in fields of their own, and an answer as `marked_answer` finds it.
    Results are those of the calls that they name (`dialects/pairing.py`).

    Messages of the assistant in a row are one turn where one of them calls. Where none does, nobody
    can tell whether the second continues the first or replaces it. Raises Malformed for that, and
    for all else that is not understood."""
    messages = [turn for message in messages for turn in in_turns(message)]
    found: list[Step] = []
    waiting: list[Label] = []  # calls without a result yet
    for speaker, said in groupby(messages, key=_speaker):
        group = list(said)
        if speaker == "tool":
            found += _results(waiting, group)
            waiting = []
            continue
        turns = [_said(message) for message in group]
        acts = any(turn.calls for turn in turns)
        if not acts and any(turn.reply for turn in turns[:-1]):
            raise Malformed("two messages of the assistant in a row")
        for message, turn in zip(group, turns, strict=True):
            if waiting and not turn.calls:
                raise Malformed("a call without a result")
            found += turn.steps
            if turn.reply:
                ends = message is messages[-1]
                found += _answered(turn.reply) if ends else [Thought(turn.reply)]
            waiting += turn.calls
    return found


def _speaker(message: Message) -> str:
    match message.get("role"):
        case "assistant":
            return "assistant"
        case "tool" | "function":
            return "tool"
        case role:
            raise Malformed(f"a message of the role {role}")


def _results(calls: Sequence[Label], messages: Sequence[Message]) -> list[Step]:
    """Return the results of the calls, in the order of the calls."""
    labels: list[Label] = []
    texts: list[str] = []
    for message in messages:
        label = Label(_name(message, "tool_call_id"), _name(message, "name"))
        text = result_text(message.get("content"))
        # One message may hold several results, which have no ids then.
        several = not label.identity and _RESPONSES.fullmatch(text) is not None
        parts = _RESPONSE.findall(text) if several else [text]
        labels += [label] * len(parts)
        texts += parts
    try:
        return [Observation(texts[place]) for place in order_of_calls(calls, labels)]
    except Unpaired as error:
        raise Malformed(str(error)) from error


def _name(record: Message, key: str) -> str:
    """Return an id or a name; numbers are ids in some files."""
    match record.get(key):
        case None:
            return ""
        case str() | int() as name:
            return str(name)
    raise Malformed(f"a '{key}' that is no text")


def read_thoughts(text: str) -> tuple[list[Step], str]:
    """Return the thoughts with which a text begins, and the text after them."""
    found: list[Step] = []
    head = text[: read_turn(text).begin]
    if "<think>" not in head and head.endswith("</think>"):  # the template wrote the first tag
        text = f"<think>{text}"
    while block := _BLOCK.match(text):
        if block[2].strip():
            role = Role(block[1]) if block[1] in set(Role) else Role.THINK
            found.append(Thought(block[2].strip(), role))
        text = text[block.end() :]
    return found, text.strip()


class _Said(NamedTuple):
    """Content of one message of the assistant: steps, the labels of its calls, and what it says
    beside its thoughts where it makes no call."""

    steps: list[Step]
    calls: list[Label]
    reply: str


def _said(message: Message) -> _Said:
    refuse_unlearned_turn(message)
    found: list[Step] = []
    thoughts, text = read_thoughts(_assistant_text(message.get("content")))
    apart = first(message, _REASONING)
    if apart is not None and (thought := Thought(text_of(apart).strip())).text:
        found += [thought] if thought not in thoughts else []  # servers may give it in both places
    found += thoughts
    turn = read_turn(text)
    if turn.thinking:
        raise Malformed("a thought that never ends")
    begun = text[: turn.begin].removesuffix("</think>").replace("<think>", "").strip()
    rest = "".join(turn.pieces).strip()
    refuse_markup("\n".join(t.text for t in found if isinstance(t, Thought)), f"{begun}\n{rest}")
    given = _given_calls(message)
    calls = [_action(call) for call in given] + [_readable(call) for call in turn.calls]
    found += [Thought(text) for text in (begun, rest if calls else "") if text]
    found += calls
    if not found and not rest:
        raise Malformed("an empty message of the assistant")
    ids = [_name(call, "id") for call in given] + [""] * len(turn.calls)
    labels = [Label(i, call.tool) for i, call in zip(ids, calls, strict=True)]
    return _Said(found, labels, "" if calls else rest)


def _assistant_text(content: Any) -> str:
    return "" if content is None else text_of(content)


def _given_calls(message: Message) -> list[Message]:
    """Return the calls in the fields of a message: `tool_calls`, or `function_call` in older
    files."""
    given, legacy = message.get("tool_calls") or [], message.get("function_call")
    if not isinstance(given, list) or not all(isinstance(call, dict) for call in given):
        raise Malformed("calls that are no list of objects")
    if legacy is None:
        return given
    if given:
        raise Malformed("both 'tool_calls' and 'function_call'")
    return [{"function": legacy}]


def _answered(text: str) -> Iterator[Step]:
    """Yield an answer, and the thought before it where something marks the answer."""
    before, answer = marked_answer(text) or ("", text)
    if before:
        yield Thought(before)
    yield Answer(answer)


def _action(call: Message) -> Action:
    match call.get("function") or call:  # some templates show calls without `function`
        case {"name": str(name), "arguments": dict(arguments)}:
            return Action(name, filled(arguments))
        case {"name": str(name), "arguments": str(text)}:
            arguments = parsed_json(text, "a call that cannot be read") if text.strip() else {}
            return _readable(read_call(json.dumps({"name": name, "arguments": arguments})))
    raise Malformed("a call that cannot be read")


def _readable(call: Action | Unreadable) -> Action:
    if not isinstance(call, Action):
        raise Malformed("a call that cannot be read")
    return call
