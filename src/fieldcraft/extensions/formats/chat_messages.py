"""Conversion of demonstrations to chat messages, in the roles of the OpenAI API, and back.

Thoughts are at the start of an assistant's text, each between the tags of its role, as in <think>
and </think>. Calls are `tool_calls`, whose arguments are objects. In a message without calls, the
text after the thoughts is the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from fieldcraft.data.prompts import extract_text
from fieldcraft.data.records import RecordError, first_filled, parse_json
from fieldcraft.dialects.calls import (
    CallLabel,
    UnmatchedResultError,
    match_results,
    parse_call_json,
    parse_turn,
)
from fieldcraft.dialects.marked_answers import split_marked_answer
from fieldcraft.dialects.thought_parser import FOREIGN_THOUGHT_TAGS
from fieldcraft.extensions.formats.markup import require_no_markup
from fieldcraft.extensions.formats.values import (
    drop_empty_keys,
    extract_result_text,
    require_trainable_turn,
)
from fieldcraft.types import (
    Answer,
    DemoStep,
    MalformedCall,
    Observation,
    Thought,
    ThoughtRole,
    ToolCall,
)

Message = dict[str, Any]

_BLOCK = re.compile(
    rf"\s*<({'|'.join(ThoughtRole)}|(?i:{'|'.join(FOREIGN_THOUGHT_TAGS)}))>(.*?)</\1>\s*", re.DOTALL
)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_RESPONSES = re.compile(rf"\s*(?:{_RESPONSE.pattern}\s*)+", re.DOTALL)
# Keys under which servers return thoughts; the value of the last one is a list of parts.
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "thought", "reasoning_details")
_FENCE = re.compile(r"^```[ \t]*(\w*)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_OUTPUT_FENCE = re.compile(r"^```[ \t]*output\b", re.MULTILINE | re.IGNORECASE)
_PROGRAM_LANGUAGES = ("python", "py", "python3")


class ChatDemonstration(NamedTuple):
    """A question and the steps after it."""

    system: str | None
    question: str
    steps: list[DemoStep]


def strip_whitespace(steps: Sequence[DemoStep]) -> list[DemoStep]:
    """Return the steps without empty thoughts and without white space around thoughts and answers,
    which chats do not preserve."""
    found: list[DemoStep] = []
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


def render_thoughts(thoughts: Sequence[Thought]) -> str:
    """Return the thoughts between tags, each followed by a blank line."""
    return "".join(f"<{t.role}>\n{t.text.strip()}\n</{t.role}>\n\n" for t in thoughts)


def render_messages(steps: Sequence[DemoStep]) -> list[Message]:
    """Return the messages of the assistant and of its tools. Consecutive actions are the calls of
    one message. Raises RecordError for an observation without a call."""
    found: list[Message] = []
    pending_calls: list[Message] = []  # calls without an observation yet
    for step in steps:
        if isinstance(step, Observation):
            if not pending_calls:
                raise RecordError("an observation without a call")
            call = pending_calls.pop(0)
            name = call["function"]["name"]
            answers = {"role": "tool", "tool_call_id": call["id"], "name": name}
            found.append({**answers, "content": step.text})
            continue
        if not found or found[-1]["role"] == "tool":
            found.append({"role": "assistant", "content": ""})
        match step:
            case Thought():
                found[-1]["content"] += render_thoughts([step])
            case ToolCall(name, arguments):
                number = sum(len(m.get("tool_calls", ())) for m in found)
                function = {"name": name, "arguments": arguments}
                tool_call = {"id": f"call_{number}", "type": "function", "function": function}
                found[-1].setdefault("tool_calls", []).append(tool_call)
                pending_calls.append(tool_call)
            case Answer(text):
                found[-1]["content"] += text.strip()
    for message in found:
        if message["role"] == "assistant":
            message["content"] = message["content"].strip()
    return found


# -- reading -----------------------------------------------------------------------------------


def parse_chat(messages: Any) -> ChatDemonstration:
    """Return the single question of a chat and the steps after it. Raises RecordError for any other
    chat."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise RecordError("no list of messages")
    roles = [m.get("role") for m in messages]
    if roles.count("user") != 1:
        raise RecordError(f"{roles.count('user')} messages of the user")
    question_index = roles.index("user")
    if any(role not in ("system", "developer") for role in roles[:question_index]):
        raise RecordError("a message of another role before the question")
    system = "\n\n".join(extract_text(m.get("content")) for m in messages[:question_index]) or None
    question = extract_text(messages[question_index].get("content")).strip()
    if not question:
        raise RecordError("an empty question")
    steps = parse_message_steps(messages[question_index + 1 :])
    if not steps:
        raise RecordError("a question without a turn of the assistant")
    return ChatDemonstration(system, question, steps)


def parse_message_steps(messages: Sequence[Message]) -> list[DemoStep]:
    """Parse the steps of messages: the inverse of `render_messages`. Calls between <tool_call>
    tags, thoughts in separate fields, and answers as found by `split_marked_answer` are parsed,
    too. Results are assigned to the calls that they name (`dialects/calls.py`).

    Consecutive messages of the assistant form one turn if one of them calls. Otherwise it is
    ambiguous whether the second continues or replaces the first. Raises RecordError in that case,
    and for everything else that cannot be parsed."""
    messages = [turn for message in messages for turn in _split_fenced_turns(message)]
    found: list[DemoStep] = []
    pending_calls: list[CallLabel] = []  # calls without a result yet
    for role, role_messages in groupby(messages, key=_get_role):
        group = list(role_messages)
        if role == "tool":
            found += _pair_results(pending_calls, group)
            pending_calls = []
            continue
        turns = [_parse_assistant_message(message) for message in group]
        has_calls = any(turn.calls for turn in turns)
        if not has_calls and any(turn.reply for turn in turns[:-1]):
            raise RecordError("two messages of the assistant in a row")
        for message, turn in zip(group, turns, strict=True):
            if pending_calls and not turn.calls:
                raise RecordError("a call without a result")
            found += turn.steps
            if turn.reply:
                is_last = message is messages[-1]
                found += _split_answer(turn.reply) if is_last else [Thought(turn.reply)]
            pending_calls += turn.calls
    return found


def _get_role(message: Message) -> str:
    match message.get("role"):
        case "assistant":
            return "assistant"
        case "tool" | "function":
            return "tool"
        case role:
            raise RecordError(f"a message of the role {role}")


def _pair_results(calls: Sequence[CallLabel], messages: Sequence[Message]) -> list[DemoStep]:
    """Return the results of the calls, in the order of the calls."""
    labels: list[CallLabel] = []
    texts: list[str] = []
    for message in messages:
        label = CallLabel(_get_name(message, "tool_call_id"), _get_name(message, "name"))
        text = extract_result_text(message.get("content"))
        # One message may contain several results, which then have no ids.
        has_several = not label.call_id and _RESPONSES.fullmatch(text) is not None
        parts = _RESPONSE.findall(text) if has_several else [text]
        labels += [label] * len(parts)
        texts += parts
    try:
        return [Observation(texts[index]) for index in match_results(calls, labels)]
    except UnmatchedResultError as error:
        raise RecordError(str(error)) from error


def _get_name(record: Message, key: str) -> str:
    """Return an id or a name; ids are numbers in some files."""
    match record.get(key):
        case None:
            return ""
        case str() | int() as name:
            return str(name)
    raise RecordError(f"a '{key}' that is not text")


def split_thoughts(text: str) -> tuple[list[DemoStep], str]:
    """Return the thoughts at the start of a text, and the text after them."""
    found: list[DemoStep] = []
    head = text[: parse_turn(text).start]
    if "<think>" not in head and head.endswith("</think>"):  # the template wrote the first tag
        text = f"<think>{text}"
    while block := _BLOCK.match(text):
        if block[2].strip():
            role = ThoughtRole(block[1]) if block[1] in set(ThoughtRole) else ThoughtRole.THINK
            found.append(Thought(block[2].strip(), role))
        text = text[block.end() :]
    return found, text.strip()


class _AssistantTurn(NamedTuple):
    """Contents of one message of the assistant: steps, labels of its calls, and, if it makes no
    call, its text without the thoughts."""

    steps: list[DemoStep]
    calls: list[CallLabel]
    reply: str


def _parse_assistant_message(message: Message) -> _AssistantTurn:
    require_trainable_turn(message)
    found: list[DemoStep] = []
    thoughts, text = split_thoughts(_assistant_text(message.get("content")))
    reasoning = first_filled(message, _REASONING_KEYS)
    if reasoning is not None and (thought := Thought(extract_text(reasoning).strip())).text:
        found += [thought] if thought not in thoughts else []  # servers may send it twice
    found += thoughts
    turn = parse_turn(text)
    if turn.is_thinking:
        raise RecordError("a thought that never ends")
    preamble = text[: turn.start].removesuffix("</think>").replace("<think>", "").strip()
    rest = "".join(turn.texts).strip()
    require_no_markup(
        "\n".join(t.text for t in found if isinstance(t, Thought)), f"{preamble}\n{rest}"
    )
    tool_calls = _get_calls(message)
    calls = [_parse_call(call) for call in tool_calls] + [
        _require_readable(call) for call in turn.calls
    ]
    found += [Thought(text) for text in (preamble, rest if calls else "") if text]
    found += calls
    if not found and not rest:
        raise RecordError("an empty message of the assistant")
    ids = [_get_name(call, "id") for call in tool_calls] + [""] * len(turn.calls)
    labels = [CallLabel(i, call.tool) for i, call in zip(ids, calls, strict=True)]
    return _AssistantTurn(found, labels, "" if calls else rest)


def _assistant_text(content: Any) -> str:
    return "" if content is None else extract_text(content)


def _get_calls(message: Message) -> list[Message]:
    """Return the calls in the fields of a message: `tool_calls`, or `function_call` in older
    files."""
    tool_calls, legacy = message.get("tool_calls") or [], message.get("function_call")
    if not isinstance(tool_calls, list) or not all(isinstance(call, dict) for call in tool_calls):
        raise RecordError("calls that are not a list of objects")
    if legacy is None:
        return tool_calls
    if tool_calls:
        raise RecordError("both 'tool_calls' and 'function_call'")
    return [{"function": legacy}]


def _split_answer(text: str) -> Iterator[DemoStep]:
    """Yield an answer, preceded by a thought if the answer is marked."""
    before, answer = split_marked_answer(text) or ("", text)
    if before:
        yield Thought(before)
    yield Answer(answer)


def _parse_call(call: Message) -> ToolCall:
    match call.get("function") or call:  # some templates omit `function`
        case {"name": str(name), "arguments": dict(arguments)}:
            return ToolCall(name, drop_empty_keys(arguments))
        case {"name": str(name), "arguments": str(text)}:
            arguments = parse_json(text, "a call that cannot be read") if text.strip() else {}
            return _require_readable(
                parse_call_json(json.dumps({"name": name, "arguments": arguments}))
            )
    raise RecordError("a call that cannot be read")


def _require_readable(call: ToolCall | MalformedCall) -> ToolCall:
    if not isinstance(call, ToolCall):
        raise RecordError("a call that cannot be read")
    return call


def _split_fenced_turns(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Split an assistant message whose text contains programs and results in fences, as in ToRA and
    ToRL, into calls of `python`, results, and the final text. The model did not write the results:
    as parts of its text, they would be trained on.

        ```python
        print(6 * 7)
        ```
        ```output
        42
        ```

    Return any other message unchanged. Raises RecordError if programs and results do not
    alternate."""
    content = message.get("content")
    text = extract_text(content) if content and message.get("role") == "assistant" else ""
    return [message] if not _OUTPUT_FENCE.search(text) else list(_split_turns(message, text))


def _split_turns(message: dict[str, Any], text: str) -> Iterator[dict[str, Any]]:
    position, program = 0, None
    for fence in _FENCE.finditer(text):
        before, language = text[position : fence.start()], fence[1].lower()
        if program is None and language in _PROGRAM_LANGUAGES:
            call = {"function": {"name": "python", "arguments": {"code": fence[2].rstrip("\n")}}}
            program = {**message, "content": before.strip(), "tool_calls": [call]}
        elif program is not None and language == "output" and not before.strip():
            yield program
            yield {"role": "tool", "content": fence[2].rstrip("\n")}
            program = None
        else:
            break
        position = fence.end()
    rest = text[position:]
    if program is not None or "```" in rest:
        raise RecordError("programs and results in fences that do not alternate")
    if rest.strip():
        yield {**message, "content": rest.strip()}
