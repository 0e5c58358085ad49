"""Formats of demonstrations, each with methods to detect, parse and write a record.

`steps` is this project's own (`data/steps_io.py`). The others are formats of training frameworks:
OpenAI's messages, TRL's, ShareGPT as in LLaMA-Factory, and AFM's. The records also get the fields
of a FlashRAG question, which other programs ignore.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from fieldcraft.data.file_formats import UNVERIFIED_KEY, TaskAndSteps
from fieldcraft.data.gold_answers import find_accepted_answers
from fieldcraft.data.records import (
    Record,
    RecordError,
    make_question_id,
    parse_json,
    require_finite_meta,
)
from fieldcraft.dialects.calls import parse_call_json
from fieldcraft.dialects.encoding import DemonstrationEncodingError, require_valid_order
from fieldcraft.extensions.formats import afm_blocks
from fieldcraft.extensions.formats.chat_messages import (
    ChatDemonstration,
    Message,
    parse_chat,
    render_messages,
    render_thoughts,
    split_thoughts,
)
from fieldcraft.extensions.formats.markup import parse_bracket_calls
from fieldcraft.extensions.formats.values import (
    drop_empty_keys,
    require_trainable_record,
    require_trainable_turn,
)
from fieldcraft.records.meta import validate_meta
from fieldcraft.types import Answer, DemoStep, Task, Thought, ToolCall

SYSTEM_KEY, TOOLS_KEY = "system", "tools"  # keys of a task's `meta` for parts of a chat
T = TypeVar("T")
RESULT_COUNT_MISMATCH = "observations that are not as many as the calls"
_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "function_call",
    "observation": "observation",
    "tool": "tool",
    "function_response": "tool",
}


class DemonstrationFormat(ABC):
    """Base class of a format of demonstration records."""

    @abstractmethod
    def matches(self, record: Record) -> bool:
        """Return whether a record appears to be in this format."""

    @abstractmethod
    def to_chat(self, record: Record) -> ChatDemonstration:
        """Return the question of a record and its steps. Raises RecordError if they cannot be
        parsed."""

    @abstractmethod
    def to_record(self, task: Task, steps: Sequence[DemoStep], tools: list[Any]) -> Record:
        """Return a record, without the fields of a question. Raises RecordError for steps that the
        format cannot represent."""

    def to_demonstration(self, record: Record) -> TaskAndSteps:
        """Return the question and the steps of a record. Raises RecordError if they cannot be
        parsed."""
        require_trainable_record(record)
        chat = self.to_chat(record)
        task = make_chat_task(record, chat)
        try:
            require_valid_order(task, chat.steps)
        except DemonstrationEncodingError as error:
            raise RecordError(error.reason.removeprefix("with ")) from error
        return task, chat.steps


class OpenAIFormat(DemonstrationFormat):
    """Format with `messages` and `tools`; the arguments of a call are a JSON text."""

    def matches(self, record: Record) -> bool:
        return isinstance(record.get("messages"), list)

    def to_chat(self, record: Record) -> ChatDemonstration:
        return parse_chat(record.get("messages"))

    def to_record(self, task: Task, steps: Sequence[DemoStep], tools: list[Any]) -> Record:
        messages = [*_prompt_messages(task), *map(_stringify_arguments, render_messages(steps))]
        return {"messages": messages, **_tools_field(tools)}


class TrlFormat(OpenAIFormat):
    """Format with `messages` and `tools`; arguments are objects, which chat templates render."""

    def to_record(self, task: Task, steps: Sequence[DemoStep], tools: list[Any]) -> Record:
        return {
            "messages": [*_prompt_messages(task), *render_messages(steps)],
            **_tools_field(tools),
        }


class PromptCompletionFormat(DemonstrationFormat):
    """TRL's `prompt` and `completion`, written as messages; texts are read, too."""

    def matches(self, record: Record) -> bool:
        return "prompt" in record and "completion" in record

    def to_chat(self, record: Record) -> ChatDemonstration:
        match record:
            case {"prompt": list(prompt), "completion": list(completion)}:
                return parse_chat([*prompt, *completion])
            case {"prompt": str(prompt), "completion": str(completion)}:
                reply = {"role": "assistant", "content": completion}
                return parse_chat([{"role": "user", "content": prompt}, reply])
        raise RecordError("no prompt with its completion")

    def to_record(self, task: Task, steps: Sequence[DemoStep], tools: list[Any]) -> Record:
        return {
            "prompt": _prompt_messages(task),
            "completion": render_messages(steps),
            **_tools_field(tools),
        }


class ShareGptFormat(DemonstrationFormat):
    """Format with `conversations` of human, gpt, function_call and observation, and `tools` as a
    JSON text. The calls of one turn are one message, and so are their observations."""

    def matches(self, record: Record) -> bool:
        return isinstance(record.get("conversations"), list)

    def to_chat(self, record: Record) -> ChatDemonstration:
        messages: list[Message] = []
        if system := _get_optional(record, "system", str):
            messages.append({"role": "system", "content": system})
        turns = record.get("conversations") or []
        tool_texts = _join_tool_texts(record, turns)
        for turn in turns:
            match turn:
                case {"from": str(origin), "value": _} if origin in _ROLES:
                    role = _ROLES[origin]
                    if role in ("assistant", "function_call"):
                        require_trainable_turn(turn)
                    messages += self._turn_messages(role, turn, messages, tool_texts)
                case _:
                    raise RecordError("a turn that is not from human, gpt, function_call or a tool")
        return parse_chat(messages)

    def _turn_messages(
        self, role: str, turn: Record, previous: Sequence[Message], tool_texts: str
    ) -> list[Message]:
        value = turn["value"]
        if role in ("observation", "tool"):
            return self._result_messages(turn, previous)
        if not isinstance(value, str):
            raise RecordError("a turn without a text")
        if role == "assistant" and (calls := parse_bracket_calls(value, tool_texts)):
            tool_calls = [{"function": {"name": c.tool, "arguments": c.arguments}} for c in calls]
            return [{"role": "assistant", "content": "", "tool_calls": tool_calls}]
        if role != "function_call":
            return [{"role": role, "content": value}]
        is_json = value.lstrip().startswith(("{", "["))  # its tags are in strings
        thoughts, rest = ([], value) if is_json else split_thoughts(value)
        found = parse_json(rest, "a call that cannot be read")
        found = found if isinstance(found, list) else [found]
        content = render_thoughts([t for t in thoughts if isinstance(t, Thought)])
        tool_calls = [{"function": _parse_function(call), "id": call.get("id")} for call in found]
        return [{"role": "assistant", "content": content, "tool_calls": tool_calls}]

    def _result_messages(self, turn: Record, previous: Sequence[Message]) -> list[Message]:
        """Return the results in a turn: one per call, in a list of the same length, or the one that
        names its call."""
        id_fields: Message = {key: turn[key] for key in ("tool_call_id", "name") if key in turn}
        calls = previous[-1].get("tool_calls", ()) if previous else ()
        count = len(calls)
        if count < 2 or "tool_call_id" in id_fields:
            return [{"role": "tool", **id_fields, "content": turn["value"]}]
        value = turn["value"]
        texts = parse_json(value, RESULT_COUNT_MISMATCH) if isinstance(value, str) else value
        if not isinstance(texts, list) or len(texts) != count:
            raise RecordError(RESULT_COUNT_MISMATCH)
        return [
            _make_result_message(text, {call["function"]["name"] for call in calls})
            for text in texts
        ]

    def to_record(self, task: Task, steps: Sequence[DemoStep], tools: list[Any]) -> Record:
        turns = [{"from": "human", "value": task.question}]
        pending_results: list[str] = []  # observations of a turn with several calls
        for message in render_messages(steps):
            calls = [call["function"] for call in message.get("tool_calls", ())]
            if message["role"] == "tool":
                pending_results.append(message["content"])
                continue
            turns += _render_observations(pending_results)
            pending_results = []
            if not calls:
                turns.append({"from": "gpt", "value": message["content"]})
                continue
            text = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
            value = f"{message['content']}\n\n{text}".strip()
            turns.append({"from": "function_call", "value": value})
        turns += _render_observations(pending_results)
        system = {"system": task.meta[SYSTEM_KEY]} if SYSTEM_KEY in task.meta else {}
        tools_field = {"tools": json.dumps(tools, ensure_ascii=False)} if tools else {}
        return {"conversations": turns, **system, **tools_field}


class AfmFormat(DemonstrationFormat):
    """AFM's format with `instruction`, `input` and `output`, one text of blocks."""

    def matches(self, record: Record) -> bool:
        output = record.get("output")
        return (
            isinstance(output, str) and "instruction" in record and afm_blocks.is_block_text(output)
        )

    def to_chat(self, record: Record) -> ChatDemonstration:
        match record:
            case {"instruction": str(instruction), "output": str(output)}:
                question_text = (_get_optional(record, "input", str) or "").strip() or instruction
                question = re.split(r"(?:^|\n)(?:Question|Task):", question_text)[-1].strip()
                return ChatDemonstration(
                    _get_optional(record, "system", str),
                    question,
                    afm_blocks.parse_block_text(output),
                )
        raise RecordError("no instruction with its output")

    def to_record(self, task: Task, steps: Sequence[DemoStep], tools: list[Any]) -> Record:
        output = afm_blocks.render_block_text(steps)
        instruction = f"{afm_blocks.choose_instruction(steps)} {task.question}"
        return {"instruction": instruction, "input": "", "output": output}


FORMATS: dict[str, DemonstrationFormat] = {
    "openai": OpenAIFormat(),
    "trl": TrlFormat(),
    "trl-prompt": PromptCompletionFormat(),
    "sharegpt": ShareGptFormat(),
    "afm": AfmFormat(),
}


def detect_format(record: Record) -> DemonstrationFormat | None:
    """Return the format of a record, or None if it is unknown."""
    return next((f for f in FORMATS.values() if f.matches(record)), None)


def normalise_chat_record(record: Record) -> Record:
    """Add the question to a demonstration that has it only in its messages. Without an accepted
    answer it gets its final answer, and `unverified` in its metadata. Messages without a reply
    become a `prompt`. Any other record is returned unchanged. Raises RecordError if the record
    cannot be parsed."""
    record = _messages_to_prompt(record)
    found = detect_format(record) if not record.get("question") else None
    if found is None:
        return record
    task, steps = found.to_demonstration(record)
    plain = record | {"question": task.question, "golden_answers": list(task.answers)}
    last_step = steps[-1] if steps else None
    if task.answers or not isinstance(last_step, Answer):
        return plain
    meta = {key: value for key, value in task.meta.items() if key not in (SYSTEM_KEY, TOOLS_KEY)}
    return plain | {"golden_answers": [last_step.text], "metadata": meta | {UNVERIFIED_KEY: True}}


def _messages_to_prompt(record: Record) -> Record:
    """Return a record with its messages as a prompt if they contain no turn of the assistant,
    because then its answer has another key. Return any other record unchanged."""
    for key, role, text in (("messages", "role", "content"), ("conversations", "from", "value")):
        turns = record.get(key)
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            continue
        roles = {_ROLES.get(str(turn.get(role)), turn.get(role)) for turn in turns}
        if "user" in roles and roles <= {"system", "developer", "user"}:
            prompt = [{"role": turn[role], "content": turn.get(text)} for turn in turns]
            return {other: record[other] for other in record if other != key} | {"prompt": prompt}
    return record


# -- helpers -----------------------------------------------------------------------------------


def make_question_fields(task: Task) -> Record:
    """Return the fields that records of every format have in addition to their own."""
    meta = {key: value for key, value in task.meta.items() if key not in (SYSTEM_KEY, TOOLS_KEY)}
    fields = {"id": task.id, "question": task.question, "golden_answers": list(task.answers)}
    return fields | ({"metadata": meta} if meta else {})


def make_chat_task(record: Record, chat: ChatDemonstration) -> Task:
    """Return the task of a chat, with further fields of its record. Raises RecordError."""
    question = _get_optional(record, "question", str) or chat.question
    meta = _get_optional(record, "metadata", dict) or {}
    try:
        validate_meta(meta)
    except ValueError as error:
        raise RecordError("invalid metadata") from error
    tools = _get_optional(record, "tools", list)
    if tools is None:  # as in OpenAI's older files
        functions = _get_optional(record, "functions", list) or []
        tools = [{"type": "function", "function": function} for function in functions]
    meta |= {SYSTEM_KEY: chat.system} if chat.system else {}
    meta |= {TOOLS_KEY: tools} if tools else {}
    require_finite_meta(meta)
    question = question.strip()
    identity = str(record.get("id") or make_question_id(question))
    answers = find_accepted_answers(record | {"question": question})
    return Task(identity, question, answers, meta)


def _get_optional(record: Record, key: str, kind: type[T]) -> T | None:
    """Return a value of a record, parsed from JSON if a type other than text is expected, or None
    if it is missing or empty."""
    value = record.get(key)
    if kind is not str and isinstance(value, str) and value.strip():
        value = parse_json(value, "a field that is not JSON")
    if value is None or value == "":
        return None
    if not isinstance(value, kind):
        raise RecordError(f"a '{key}' of another kind")
    found: T = drop_empty_keys(value)
    return found


def _prompt_messages(task: Task) -> list[Message]:
    """Return the messages before the first one of the assistant."""
    system = (
        [{"role": "system", "content": task.meta[SYSTEM_KEY]}] if SYSTEM_KEY in task.meta else []
    )
    return [*system, {"role": "user", "content": task.question}]


def _tools_field(tools: list[Any]) -> Record:
    return {"tools": tools} if tools else {}


def _stringify_arguments(message: Message) -> Message:
    """Return a message whose calls have JSON texts as arguments."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**function, "arguments": text}})
    return {**message, "tool_calls": calls}


def _render_observations(texts: Sequence[str]) -> list[Record]:
    if not texts:
        return []
    value = texts[0] if len(texts) == 1 else json.dumps(list(texts), ensure_ascii=False)
    return [{"from": "observation", "value": value}]


def _make_result_message(given: Any, names: set[str]) -> Message:
    """Return one of several results, with the name of its tool if it has one, as in ToolACE."""
    if isinstance(given, dict) and given.keys() >= {"tool_call_id", "content"}:
        return {**given, "role": "tool"}
    has_name = isinstance(given, dict) and given.get("name") in names
    return {"role": "tool", "content": given} | ({"name": given["name"]} if has_name else {})


def _join_tool_texts(record: Record, turns: Sequence[Any]) -> str:
    """Return the texts of a conversation that describe its tools."""
    texts = [record.get("system"), record.get("tools")]
    texts += [t.get("value") for t in turns if isinstance(t, dict) and t.get("from") == "system"]
    return " ".join(text if isinstance(text, str) else json.dumps(text) for text in texts)


def _parse_function(call: Any) -> Record:
    parsed = parse_call_json(json.dumps(call))
    if not isinstance(parsed, ToolCall):
        raise RecordError("a call that cannot be read")
    return {"name": parsed.tool, "arguments": parsed.arguments}
