"""Formats of demonstrations, each with a way to know, to read and to write one record.

`steps` is this project's own (`data/steps_io.py`). The others are what trainers of models take:
OpenAI's messages, TRL's, ShareGPT as LLaMA-Factory has it, and AFM's. The records also get the
fields of a FlashRAG question, which the others pass over.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from fieldcraft.data.formats import blocks
from fieldcraft.data.formats.bracket_calls import read_bracket_calls
from fieldcraft.data.formats.chat import (
    Chat,
    Message,
    messages_of,
    read_chat,
    read_thoughts,
    written_thoughts,
)
from fieldcraft.data.formats.meaning import refuse_unlearned_record, refuse_unlearned_turn
from fieldcraft.data.formats.values import filled, parsed_json
from fieldcraft.data.gold_answers import accepted_answers
from fieldcraft.data.records import Malformed, Record, hash_of
from fieldcraft.dialects.calls import read_call
from fieldcraft.dialects.demonstrations import Unwritable, require_order
from fieldcraft.records.meta import checked_meta
from fieldcraft.types import Action, Answer, Step, Task, Thought

Shown = tuple[Task, list[Step]]
SYSTEM, TOOLS = "system", "tools"  # what a task's `meta` keeps of a chat
T = TypeVar("T")
NO_LIST = "observations that are not as many as the calls"
UNVERIFIED = "unverified"  # of `meta`: the accepted answer is that of a demonstration
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


class Format(ABC):
    """Form in which somebody writes one demonstration."""

    @abstractmethod
    def fits(self, record: Record) -> bool:
        """Return whether a record looks like one of this format."""

    @abstractmethod
    def chat(self, record: Record) -> Chat:
        """Return the question of a record and its steps. Raises Malformed where they cannot be
        read."""

    @abstractmethod
    def write(self, task: Task, steps: Sequence[Step], tools: list[Any]) -> Record:
        """Write a record, without the fields of a question. Raises Malformed for steps that the
        format has no place for."""

    def read(self, record: Record) -> Shown:
        """Return the question and the steps of a record. Raises Malformed where they cannot be
        read."""
        refuse_unlearned_record(record)
        chat = self.chat(record)
        task = task_of_chat(record, chat)
        try:
            require_order(task, chat.steps)
        except Unwritable as error:
            raise Malformed(error.reason.removeprefix("with ")) from error
        return task, chat.steps


class OpenAI(Format):
    """`messages` and `tools`; the arguments of a call are a JSON text."""

    def fits(self, record: Record) -> bool:
        return isinstance(record.get("messages"), list)

    def chat(self, record: Record) -> Chat:
        return read_chat(record.get("messages"))

    def write(self, task: Task, steps: Sequence[Step], tools: list[Any]) -> Record:
        messages = [*_asked(task), *map(_with_texts, messages_of(steps))]
        return {"messages": messages, **_tools(tools)}


class Trl(OpenAI):
    """`messages` and `tools`, with objects as arguments, which chat templates show."""

    def write(self, task: Task, steps: Sequence[Step], tools: list[Any]) -> Record:
        return {"messages": [*_asked(task), *messages_of(steps)], **_tools(tools)}


class PromptCompletion(Format):
    """TRL's `prompt` and `completion`, of messages; texts are read, too."""

    def fits(self, record: Record) -> bool:
        return "prompt" in record and "completion" in record

    def chat(self, record: Record) -> Chat:
        match record:
            case {"prompt": list(prompt), "completion": list(completion)}:
                return read_chat([*prompt, *completion])
            case {"prompt": str(prompt), "completion": str(completion)}:
                said = {"role": "assistant", "content": completion}
                return read_chat([{"role": "user", "content": prompt}, said])
        raise Malformed("no prompt with its completion")

    def write(self, task: Task, steps: Sequence[Step], tools: list[Any]) -> Record:
        return {"prompt": _asked(task), "completion": messages_of(steps), **_tools(tools)}


class ShareGpt(Format):
    """`conversations` of human, gpt, function_call and observation, and `tools` as a JSON text. The
    calls of one turn are one message, and so are their observations."""

    def fits(self, record: Record) -> bool:
        return isinstance(record.get("conversations"), list)

    def chat(self, record: Record) -> Chat:
        messages: list[Message] = []
        if system := _optional(record, "system", str):
            messages.append({"role": "system", "content": system})
        turns = record.get("conversations") or []
        offered = _offered(record, turns)
        for turn in turns:
            match turn:
                case {"from": str(origin), "value": _} if origin in _ROLES:
                    role = _ROLES[origin]
                    if role in ("assistant", "function_call"):
                        refuse_unlearned_turn(turn)
                    messages += self._messages(role, turn, messages, offered)
                case _:
                    raise Malformed("a turn that is not from human, gpt, function_call or a tool")
        return read_chat(messages)

    def _messages(
        self, role: str, turn: Record, before: Sequence[Message], offered: str
    ) -> list[Message]:
        value = turn["value"]
        if role in ("observation", "tool"):
            return self._results(turn, before)
        if not isinstance(value, str):
            raise Malformed("a turn without a text")
        if role == "assistant" and (calls := read_bracket_calls(value, offered)):
            made = [{"function": {"name": c.tool, "arguments": c.arguments}} for c in calls]
            return [{"role": "assistant", "content": "", "tool_calls": made}]
        if role != "function_call":
            return [{"role": role, "content": value}]
        bare = value.lstrip().startswith(("{", "["))  # tags in it are in strings
        thoughts, rest = ([], value) if bare else read_thoughts(value)
        found = parsed_json(rest, "a call that cannot be read")
        found = found if isinstance(found, list) else [found]
        content = written_thoughts([t for t in thoughts if isinstance(t, Thought)])
        made = [{"function": _function(call), "id": call.get("id")} for call in found]
        return [{"role": "assistant", "content": content, "tool_calls": made}]

    def _results(self, turn: Record, before: Sequence[Message]) -> list[Message]:
        """Return the results in a turn: one for each call, in a list of as many, or the one that
        names its call."""
        named: Message = {key: turn[key] for key in ("tool_call_id", "name") if key in turn}
        calls = before[-1].get("tool_calls", ()) if before else ()
        count = len(calls)
        if count < 2 or "tool_call_id" in named:
            return [{"role": "tool", **named, "content": turn["value"]}]
        value = turn["value"]
        texts = parsed_json(value, NO_LIST) if isinstance(value, str) else value
        if not isinstance(texts, list) or len(texts) != count:
            raise Malformed(NO_LIST)
        return [_result(text, {call["function"]["name"] for call in calls}) for text in texts]

    def write(self, task: Task, steps: Sequence[Step], tools: list[Any]) -> Record:
        turns = [{"from": "human", "value": task.question}]
        waiting: list[str] = []  # observations of a turn with several calls
        for message in messages_of(steps):
            calls = [call["function"] for call in message.get("tool_calls", ())]
            if message["role"] == "tool":
                waiting.append(message["content"])
                continue
            turns += _observed(waiting)
            waiting = []
            if not calls:
                turns.append({"from": "gpt", "value": message["content"]})
                continue
            text = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
            value = f"{message['content']}\n\n{text}".strip()
            turns.append({"from": "function_call", "value": value})
        turns += _observed(waiting)
        system = {"system": task.meta[SYSTEM]} if SYSTEM in task.meta else {}
        shown = {"tools": json.dumps(tools, ensure_ascii=False)} if tools else {}
        return {"conversations": turns, **system, **shown}


class Afm(Format):
    """AFM's `instruction`, `input` and `output`: one text in blocks."""

    def fits(self, record: Record) -> bool:
        output = record.get("output")
        return isinstance(output, str) and "instruction" in record and blocks.fits(output)

    def chat(self, record: Record) -> Chat:
        match record:
            case {"instruction": str(instruction), "output": str(output)}:
                asked = (_optional(record, "input", str) or "").strip() or instruction
                question = re.split(r"(?:^|\n)(?:Question|Task):", asked)[-1].strip()
                return Chat(_optional(record, "system", str), question, blocks.read(output))
        raise Malformed("no instruction with its output")

    def write(self, task: Task, steps: Sequence[Step], tools: list[Any]) -> Record:
        output = blocks.write(steps)
        instruction = f"{blocks.instruction(steps)} {task.question}"
        return {"instruction": instruction, "input": "", "output": output}


FORMATS: dict[str, Format] = {
    "openai": OpenAI(),
    "trl": Trl(),
    "trl-prompt": PromptCompletion(),
    "sharegpt": ShareGpt(),
    "afm": Afm(),
}


def format_of(record: Record) -> Format | None:
    """Return the format of a record, None if it is another."""
    return next((f for f in FORMATS.values() if f.fits(record)), None)


def chat_record(record: Record) -> Record:
    """Return a demonstration that does not say its question as one that does. Without an accepted
    answer it gets the one that it ends in, and `unverified` in its metadata. Messages that nobody
    answers are a `prompt`. Any other record is as it is. Raises Malformed for one that cannot be
    read."""
    record = _unanswered(record)
    found = format_of(record) if not record.get("question") else None
    if found is None:
        return record
    task, steps = found.read(record)
    plain = record | {"question": task.question, "golden_answers": list(task.answers)}
    ended = steps[-1] if steps else None
    if task.answers or not isinstance(ended, Answer):
        return plain
    meta = {key: value for key, value in task.meta.items() if key not in (SYSTEM, TOOLS)}
    return plain | {"golden_answers": [ended.text], "metadata": meta | {UNVERIFIED: True}}


def _unanswered(record: Record) -> Record:
    """Return a record with its messages as a prompt where no turn of the assistant is among them:
    its answer stands in other keys. Any other record is as it is."""
    for key, role, text in (("messages", "role", "content"), ("conversations", "from", "value")):
        turns = record.get(key)
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            continue
        roles = {_ROLES.get(str(turn.get(role)), turn.get(role)) for turn in turns}
        if "user" in roles and roles <= {"system", "developer", "user"}:
            prompt = [{"role": turn[role], "content": turn.get(text)} for turn in turns]
            return {other: record[other] for other in record if other != key} | {"prompt": prompt}
    return record


# -- parts of records --------------------------------------------------------------------------


def question_fields(task: Task) -> Record:
    """Return what the records of every format hold beside their own keys."""
    meta = {key: value for key, value in task.meta.items() if key not in (SYSTEM, TOOLS)}
    fields = {"id": task.id, "question": task.question, "golden_answers": list(task.answers)}
    return fields | ({"metadata": meta} if meta else {})


def task_of_chat(record: Record, chat: Chat) -> Task:
    """Return the question of a chat, with what else its record says of it. Raises Malformed."""
    question = _optional(record, "question", str) or chat.question
    meta = _optional(record, "metadata", dict) or {}
    try:
        checked_meta(meta)
    except ValueError as error:
        raise Malformed("metadata that cannot be counted with") from error
    tools = _optional(record, "tools", list)
    if tools is None:  # as OpenAI's older files have them
        functions = _optional(record, "functions", list) or []
        tools = [{"type": "function", "function": function} for function in functions]
    meta |= {SYSTEM: chat.system} if chat.system else {}
    meta |= {TOOLS: tools} if tools else {}
    question = question.strip()
    identity = str(record.get("id") or hash_of(question))
    answers = accepted_answers(record | {"question": question})
    return Task(identity, question, answers, meta)


def _optional(record: Record, key: str, kind: type[T]) -> T | None:
    """Return a value of a record, which may be a JSON text where it is no text itself; None where
    it is missing or empty."""
    value = record.get(key)
    if kind is not str and isinstance(value, str) and value.strip():
        value = parsed_json(value, "a field that is no JSON")
    if value is None or value == "":
        return None
    if not isinstance(value, kind):
        raise Malformed(f"a '{key}' of another kind")
    found: T = filled(value)
    return found


def _asked(task: Task) -> list[Message]:
    """Return the messages before the assistant's first."""
    system = [{"role": "system", "content": task.meta[SYSTEM]}] if SYSTEM in task.meta else []
    return [*system, {"role": "user", "content": task.question}]


def _tools(tools: list[Any]) -> Record:
    return {"tools": tools} if tools else {}


def _with_texts(message: Message) -> Message:
    """Return a message whose calls have their arguments as JSON texts."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**function, "arguments": text}})
    return {**message, "tool_calls": calls}


def _observed(texts: Sequence[str]) -> list[Record]:
    if not texts:
        return []
    value = texts[0] if len(texts) == 1 else json.dumps(list(texts), ensure_ascii=False)
    return [{"from": "observation", "value": value}]


def _result(given: Any, names: set[str]) -> Message:
    """Return one of several results; of one that names its tool, as ToolACE's do, the name is
    kept."""
    if isinstance(given, dict) and given.keys() >= {"tool_call_id", "content"}:
        return {**given, "role": "tool"}
    named = isinstance(given, dict) and given.get("name") in names
    return {"role": "tool", "content": given} | ({"name": given["name"]} if named else {})


def _offered(record: Record, turns: Sequence[Any]) -> str:
    """Return the texts of a conversation that show its tools."""
    shown = [record.get("system"), record.get("tools")]
    shown += [t.get("value") for t in turns if isinstance(t, dict) and t.get("from") == "system"]
    return " ".join(text if isinstance(text, str) else json.dumps(text) for text in shown)


def _function(call: Any) -> Record:
    read = read_call(json.dumps(call))
    if not isinstance(read, Action):
        raise Malformed("a call that cannot be read")
    return {"name": read.tool, "arguments": read.arguments}
