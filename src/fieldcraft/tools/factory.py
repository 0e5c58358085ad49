"""Creation of the tools that a recipe names, with clear errors for objects that are not tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, get_args

from fieldcraft.config.choices import ToolConfig
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import resolve, suggest_name
from fieldcraft.config.sections import DEFAULT_CALL_COST
from fieldcraft.dialects.tool_names import add_name_variants
from fieldcraft.tools.base import FunctionTool, read_type_hints
from fieldcraft.tools.http import NO_SITES, InProcessSites
from fieldcraft.types import AnyTool, StatefulTool, Task, Tool, UserError


def make_tool(name: str, settings: Mapping[str, Any], sites: InProcessSites = NO_SITES) -> AnyTool:
    """Make the tool of a recipe. `name` is a built-in name, an entry point, or `module:Name`.

    A tool that accepts `sites` reaches these web sites in this process, and all others over the
    network.

    Raises UserError for an unknown name, wrong settings, or an object that is not a tool.
    """
    return coerce_tool(resolve(ComponentKind.TOOL, name), name, settings, sites)


def apply_tool_config(tool: AnyTool, config: ToolConfig) -> AnyTool:
    """Return the tool with the alternative names (see `dialects.tool_names`) and cost of a recipe.

    The tool is returned unchanged if the recipe sets neither. Raises UserError for invalid names.
    """
    cost = config.cost
    if isinstance(cost, dict):
        cost = cost.get(tool.name, DEFAULT_CALL_COST)
    if not config.names and not config.eval_names and cost == DEFAULT_CALL_COST:
        return tool
    schema = tool.schema
    if config.names or config.eval_names:
        schema = add_name_variants(schema, config.names, config.eval_names)
    return (ConfiguredStatefulTool if isinstance(tool, StatefulTool) else ConfiguredTool)(
        tool, schema, cost
    )


def apply_server_config(tools: Sequence[AnyTool], config: ToolConfig) -> list[AnyTool]:
    """Return all tools of a server with the settings of a recipe.

    Raises UserError for the cost of a tool that the server lacks.
    """
    known = [tool.name for tool in tools]
    for name in config.cost if isinstance(config.cost, dict) else ():
        if name not in known:
            raise UserError(
                f"cost names '{name}', which is not a tool of the server;"
                f" {suggest_name(name, known)}"
            )
    return [apply_tool_config(tool, config) for tool in tools]


def unwrap_tool(tool: AnyTool) -> AnyTool:
    """Return the tool itself, without the settings of a recipe."""
    inner: AnyTool = tool._tool if isinstance(tool, _ConfiguredToolBase) else tool
    return inner


def collect_costs(tools: Iterable[AnyTool]) -> dict[str, float]:
    """Return the cost per call of each tool, by name."""
    return {
        t.name: t.cost if isinstance(t, _ConfiguredToolBase) else DEFAULT_CALL_COST for t in tools
    }


class _ConfiguredToolBase:
    def __init__(self, tool: Any, schema: dict[str, Any], cost: float) -> None:
        self.name: str = tool.name
        self.schema = schema
        self.cost = cost
        self._tool = tool


class ConfiguredTool(_ConfiguredToolBase):
    """Tool with the names and cost that a recipe sets."""

    async def __call__(self, /, **arguments: Any) -> str:
        text: str = await self._tool(**arguments)
        return text


class ConfiguredStatefulTool(_ConfiguredToolBase):
    """`ConfiguredTool` that is opened for each rollout."""

    def open(self, task: Task) -> AbstractAsyncContextManager[Tool]:
        opened: AbstractAsyncContextManager[Tool] = self._tool.open(task)
        return opened


def coerce_tool(
    target: Any, name: str, settings: Mapping[str, Any], sites: InProcessSites = NO_SITES
) -> AnyTool:
    """Make a tool from the object that a name resolves to, with the settings of a recipe.

    Args:
        target: a tool, a typed function with a docstring, or a class or function that takes the
            settings as keyword arguments and returns a tool. A function counts as a tool factory
            if its return type is a class that can be called or opened.
        name: name used in messages.
        settings: settings of the recipe other than the name.
        sites: see `make_tool`.

    Raises UserError for wrong settings, or if the object is not a tool.
    """
    if isinstance(target, type) or (inspect.isfunction(target) and _returns_tool(target, name)):
        return _require_tool(
            instantiate(ComponentKind.TOOL, name, target, settings, {"sites": sites}), name
        )
    if settings:
        raise UserError(
            f"the tool '{name}' does not accept settings: remove '{next(iter(settings))}', or name"
            " a class or function that creates the tool from settings."
        )
    return _require_tool(FunctionTool(target) if inspect.isfunction(target) else target, name)


def _returns_tool(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function's return type is a tool, rather than the result of a tool call."""
    returned = read_type_hints(function, name).get("return")
    return any(
        "__call__" in dir(kind) or "open" in dir(kind) for kind in _iterate_classes(returned)
    )


def _iterate_classes(hint: Any) -> Iterator[type]:
    """Yield the classes in a type hint that may be a union."""
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type):
            yield kind


def _require_tool(made: Any, name: str) -> AnyTool:
    """Return `made` if it has the interface of a tool. Raises UserError otherwise."""
    attributes = dir(made)
    for attribute in ("name", "schema"):
        if attribute not in attributes:
            raise UserError(
                f"'{name}' is not a tool: it has no '{attribute}'; write a typed function with a"
                " docstring, or a class with name, schema, and __call__ or open."
            )
    if isinstance(made, type) or not isinstance(made, AnyTool):
        raise UserError(
            f"'{name}' is not a tool: it can neither be called nor opened; give it"
            " 'async def __call__(self, /, **arguments)' or 'def open(self, task)'."
        )
    match made.schema:
        case {"type": "function", "function": {"name": str(schema_name), "parameters": dict()}}:
            if schema_name != made.name or not schema_name:
                raise UserError(
                    f"the tool '{name}' has the name {made.name!r} and, in its schema,"
                    f" {schema_name!r}; give both the same."
                )
        case _:
            raise UserError(
                f"the schema of the tool '{name}' is not in the form of chat templates; write"
                " {'type': 'function', 'function': {'name', 'description', 'parameters'}}."
            )
    if not isinstance(made, StatefulTool) and not inspect.iscoroutinefunction(made.__call__):
        raise UserError(
            f"the tool '{name}' would block all rollouts: its __call__ is not async; write"
            " 'async def __call__'."
        )
    return made
