"""Tools that a recipe names: whatever a name stands for becomes a tool, or one clear sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, get_args, get_type_hints

from fieldcraft.config.choices import ToolChoice
from fieldcraft.config.making import make_part
from fieldcraft.config.names import Kind, find, suggestion
from fieldcraft.config.sections import DEFAULT_COST
from fieldcraft.dialects.naming import with_names
from fieldcraft.tools.base import FunctionTool
from fieldcraft.tools.http import NO_SITES, Sites
from fieldcraft.types import AnyTool, StatefulTool, Task, Tool, UserError


def make_tool(name: str, settings: Mapping[str, Any], sites: Sites = NO_SITES) -> AnyTool:
    """Make the tool of a recipe; `name` is one that is built in, of an entry point, or
    `module:Name`.

    A tool that takes `sites` finds these web sites in this process, and all others in the network.

    Raises UserError for an unknown name, wrong settings, and for what is no tool.
    """
    return as_tool(find(Kind.TOOL, name), name, settings, sites)


def as_chosen(tool: AnyTool, choice: ToolChoice) -> AnyTool:
    """Return the tool as a recipe describes it: with the names that a question may give it, see
    `dialects.naming`, and with its cost. It is the tool itself where a recipe says nothing of that.
    Raises UserError for names that do not fit."""
    cost = choice.cost
    if isinstance(cost, dict):
        cost = cost.get(tool.name, DEFAULT_COST)
    if not choice.called and not choice.unseen and cost == DEFAULT_COST:
        return tool
    schema = tool.schema
    if choice.called or choice.unseen:
        schema = with_names(schema, choice.called, choice.unseen)
    return (DescribedStateful if isinstance(tool, StatefulTool) else DescribedTool)(
        tool, schema, cost
    )


def server_tools_as_chosen(tools: Sequence[AnyTool], choice: ToolChoice) -> list[AnyTool]:
    """Return all tools of a server as a recipe describes them. Raises UserError for the cost of a
    tool that it lacks."""
    known = [tool.name for tool in tools]
    for name in choice.cost if isinstance(choice.cost, dict) else ():
        if name not in known:
            raise UserError(
                f"cost names '{name}', which is no tool of the server; {suggestion(name, known)}"
            )
    return [as_chosen(tool, choice) for tool in tools]


def as_made(tool: AnyTool) -> AnyTool:
    """Return the tool itself, without what a recipe says about it."""
    made: AnyTool = tool._tool if isinstance(tool, _DescribedPart) else tool
    return made


def costs_of(tools: Iterable[AnyTool]) -> dict[str, float]:
    """Return the cost of a call of each tool, by its name."""
    return {t.name: t.cost if isinstance(t, _DescribedPart) else DEFAULT_COST for t in tools}


class _DescribedPart:
    def __init__(self, tool: Any, schema: dict[str, Any], cost: float) -> None:
        self.name: str = tool.name
        self.schema = schema
        self.cost = cost
        self._tool = tool


class DescribedTool(_DescribedPart):
    """A tool with what a recipe says about it."""

    async def __call__(self, **arguments: Any) -> str:
        text: str = await self._tool(**arguments)
        return text


class DescribedStateful(_DescribedPart):
    """Described tool that is opened for each rollout."""

    def open(self, task: Task) -> AbstractAsyncContextManager[Tool]:
        opened: AbstractAsyncContextManager[Tool] = self._tool.open(task)
        return opened


def as_tool(found: Any, name: str, settings: Mapping[str, Any], sites: Sites = NO_SITES) -> AnyTool:
    """Make the tool that a name stands for, with the settings of a recipe.

    Args:
        found: a tool, a typed function with a docstring, or a class or function that takes the
            settings as keyword arguments and makes a tool. A function makes one where it says so:
            its return type is a class that can be called or opened.
        name: for messages.
        settings: what the recipe says besides the name.
        sites: see `make_tool`.

    Raises UserError for wrong settings and for what is no tool.
    """
    if isinstance(found, type) or (inspect.isfunction(found) and _makes_tools(found, name)):
        return _checked(make_part(Kind.TOOL, name, found, settings, {"sites": sites}), name)
    if settings:
        raise UserError(
            f"the tool '{name}' takes no settings, so remove '{next(iter(settings))}', or name a"
            " class or function that makes the tool from settings."
        )
    return _checked(FunctionTool(found) if inspect.isfunction(found) else found, name)


def _makes_tools(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function's return type is a tool, rather than what a call of one returns."""
    try:
        returned = get_type_hints(function).get("return")
    except NameError as error:
        raise UserError(
            f"the tool '{name}' cannot be read, because a type hint is unknown ({error}); import"
            " the type at the top of its module."
        ) from error
    return any("__call__" in dir(kind) or "open" in dir(kind) for kind in _classes(returned))


def _classes(hint: Any) -> Iterator[type]:
    """Yield the classes in a type hint that may be a union."""
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type):
            yield kind


def _checked(made: Any, name: str) -> AnyTool:
    """Return `made`, if it has the shape of a tool."""
    parts = dir(made)
    for part in ("name", "schema"):
        if part not in parts:
            raise UserError(
                f"'{name}' is no tool, because it has no '{part}'; write a typed function with a"
                " docstring, or a class with name, schema, and __call__ or open."
            )
    if isinstance(made, type) or not isinstance(made, AnyTool):
        raise UserError(
            f"'{name}' is no tool, because it can neither be called nor opened; give it"
            " 'async def __call__(self, **arguments)' or 'def open(self, task)'."
        )
    match made.schema:
        case {"type": "function", "function": {"name": str(told), "parameters": dict()}}:
            if told != made.name or not told:
                raise UserError(
                    f"the tool '{name}' has the name {made.name!r} and, in its schema, {told!r};"
                    " give both the same."
                )
        case _:
            raise UserError(
                f"the schema of the tool '{name}' is not in the form of chat templates; write"
                " {'type': 'function', 'function': {'name', 'description', 'parameters'}}."
            )
    if not isinstance(made, StatefulTool) and not inspect.iscoroutinefunction(made.__call__):
        raise UserError(
            f"the tool '{name}' would block all rollouts, because its __call__ is not async; write"
            " 'async def __call__'."
        )
    return made
