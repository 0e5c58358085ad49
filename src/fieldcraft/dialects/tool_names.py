"""Tool names that vary between questions.

A model that always sees the same tools memorises their names and ignores their descriptions in the
prompt. Varying the names per question forces it to read them (function masking, Hammer, arXiv
2410.04587). A tool whose schema has the key CALLED_KEY has several names. Everything outside of
prompts and turns, such as records and rewards, uses the tool's canonical name.

A question can also be restricted to a subset of the tools, listed in its metadata under
OFFERED_KEY. The prompt then shows only these, and calls of other tools are refused. A run can
therefore contain several kinds of questions, each with different tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from fieldcraft.config.choices import ToolSignature, parse_signature
from fieldcraft.dialects.untyped import with_types
from fieldcraft.types import CallRecord, MalformedCall, Task, ToolCall, UserError

SEEN_NAMES, UNSEEN_NAMES = "seen", "unseen"  # kinds of tool names that a question samples from
OFFERED_KEY = "offered"  # in a task's meta: names of the offered tools
CALLED_KEY = "called"  # in a schema: signatures of both kinds; in a task's meta: one of the kinds


def add_name_variants(
    schema: dict[str, Any], seen: Sequence[str], unseen: Sequence[str]
) -> dict[str, Any]:
    """Return the schema of a tool with the given name variants; a kind without variants uses the
    canonical name.

    Raises UserError for a signature with more arguments than the tool has, or with duplicate names.
    """
    function = schema["function"]
    own = list(function["parameters"].get("properties", {}))
    for text in (*seen, *unseen):
        arguments = parse_signature(text).arguments
        if len(arguments) > len(own):
            raise UserError(
                f"'{text}' names {len(arguments)} arguments, and the tool '{function['name']}' has"
                f" {len(own)}: give new names to {', '.join(own)}, in this order."
            )
        if both := set(arguments) & set(own[len(arguments) :]):
            raise UserError(f"'{text}' has two arguments '{min(both)}': give each its own name.")
    return {**schema, CALLED_KEY: {SEEN_NAMES: tuple(seen), UNSEEN_NAMES: tuple(unseen)}}


@dataclass(frozen=True, slots=True)
class _VisibleTool:
    """A tool as visible in one question. `arguments` maps the visible names to canonical ones; None
    if nothing is renamed, so that the tool itself validates them."""

    own: str
    schema: dict[str, Any]
    arguments: Mapping[str, str] | None

    def translate(self, message: str) -> str:
        """Return a message with the visible names in place of the canonical ones."""
        if self.arguments is None:
            return message
        visible = {own: surface for surface, own in self.arguments.items()}
        visible[self.own] = self.schema["function"]["name"]
        pattern = rf"\b({'|'.join(map(re.escape, visible))})\b"
        return re.sub(pattern, lambda match: visible[match[0]], message)


class ToolNameMap:
    """Mapping between the tool names of one question and the canonical names.

    Args:
        task: the question. Its id determines the names; `meta["called"]` may select the `unseen`
            names.
        tools: JSON schemas; those with several names as returned by `add_name_variants`.
    """

    def __init__(self, task: Task, tools: Sequence[dict[str, Any]]) -> None:
        offered = get_offered_names(task)
        self._tools = {}
        self._all = offered is None
        for tool in tools:
            if offered is not None and tool["function"]["name"] not in offered:
                continue
            named = _make_visible_tool(task, tool)
            self._tools[named.schema["function"]["name"]] = named

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Schemas that the prompt shows."""
        return [named.schema for named in self._tools.values()]

    def to_surface(self, call: ToolCall) -> ToolCall:
        """Convert a call with canonical names to the names visible to the policy."""
        for name, named in self._tools.items():
            if named.own == call.tool and named.arguments is not None:
                surface_names = {own: surface for surface, own in named.arguments.items()}
                return ToolCall(
                    name, {surface_names.get(k, k): v for k, v in call.arguments.items()}
                )
        return call

    def to_canonical(self, call: ToolCall | MalformedCall) -> ToolCall | MalformedCall:
        """Convert a call of the policy to canonical names. For a malformed call that names a tool,
        also check that the question offers this tool."""
        if isinstance(call, ToolCall):
            return self._call_to_canonical(call)
        if not call.tool:
            return call
        if (named := self._tools.get(call.tool)) is None:
            return replace(call, fault="tool")
        return replace(call, tool=named.own, fault="arguments")

    def translate_fault(self, record: CallRecord) -> CallRecord:
        """Return the record of a call; a message about its arguments has the names visible to the
        policy."""
        for named in self._tools.values():
            if named.own == record.tool and record.fault == "arguments":
                return replace(record, observation=named.translate(record.observation))
        return record

    def _call_to_canonical(self, call: ToolCall) -> ToolCall | MalformedCall:
        named = self._tools.get(call.tool)
        if named is not None:
            call = with_types(call, named.schema)
        if self._all and all(each.arguments is None for each in self._tools.values()):
            return call
        if named is None:
            known = ", ".join(self._tools) or "none"
            reason = f"There is no tool {call.tool!r}; known: {known}."
            return MalformedCall(reason, call.tool, "tool")
        if named.arguments is None:
            return call
        if unknown := call.arguments.keys() - named.arguments.keys():
            return MalformedCall(
                f"Wrong arguments for {call.tool}: {', '.join(sorted(unknown))}; known:"
                f" {', '.join(named.arguments)}.",
                call.tool,
                "arguments",
            )
        return ToolCall(named.own, {named.arguments[k]: v for k, v in call.arguments.items()})


def get_offered_names(task: Task) -> list[str] | None:
    """Return the names of the tools that a question offers; None: all. Raises UserError for
    metadata that is not a list of names."""
    names = task.meta.get(OFFERED_KEY)
    if names is None or (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        return names
    raise UserError(
        f"the question '{task.id}' has {OFFERED_KEY}: {names!r} in its metadata: write a list of"
        ' names of tools, as in ["search"].'
    )


def _make_visible_tool(task: Task, tool: dict[str, Any]) -> _VisibleTool:
    own = tool["function"]["name"]
    choices = tool.get(CALLED_KEY, {}).get(task.meta.get(CALLED_KEY, SEEN_NAMES), ())
    if not choices:
        return _VisibleTool(own, {"type": "function", "function": tool["function"]}, None)
    # Not `hash`, which differs between processes.
    drawn = choices[crc32(task.id.encode()) % len(choices)]
    return _rename_tool(own, tool, parse_signature(drawn))


def _rename_tool(own: str, tool: Mapping[str, Any], signature: ToolSignature) -> _VisibleTool:
    function = tool["function"]
    parameters = function["parameters"]
    properties = parameters.get("properties", {})
    own_names = list(properties)
    rest = own_names[len(signature.arguments) :]
    names = dict(zip(own_names, [*signature.arguments, *rest], strict=True))
    renamed = {
        **parameters,
        "properties": {names[key]: value for key, value in properties.items()},
        "required": [names[key] for key in parameters.get("required", ())],
    }
    schema = {
        "type": "function",
        "function": {**function, "name": signature.name, "parameters": renamed},
    }
    return _VisibleTool(own, schema, {surface: argument for argument, surface in names.items()})


# -- questions that are asked a second time ----------------------------------------------------

UNSEEN_SPLIT_TITLE = "The first questions once more, with names of tools that no training shows"


def make_unseen_name_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Return the questions as members of the split `unseen`."""
    return [
        replace(
            task,
            id=f"{task.id}:{UNSEEN_NAMES}",
            meta=task.meta | {"split": UNSEEN_NAMES, CALLED_KEY: UNSEEN_NAMES},
        )
        for task in tasks
    ]
