"""Tools as typed functions with a docstring.

@tool
def weather(city: str, days: int = 1) -> str:
    '''The weather forecast for a city.

    Args:
        city: name of the city.
        days: how many days ahead.
    '''
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    NotRequired,
    Protocol,
    final,
    get_type_hints,
    runtime_checkable,
)

import docstring_parser
from pydantic import (
    ConfigDict,
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from fieldcraft.tools.threads import run_in_thread
from fieldcraft.types import ArgumentError, UserError


@runtime_checkable
class ClosableTool(Protocol):
    """Tool with a connection of its own, which a run closes at its end."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Isolation:
    """Separation of the programs of a tool or an environment from the machine.

    Attributes:
        backend: name of the place where they run.
        layers: names of what is active there.
        summary: the end of a sentence that begins with "programs run".
    """

    backend: str
    layers: Sequence[str]
    summary: str


@runtime_checkable
class IsolatingTool(Protocol):
    """Tool or environment that runs untrusted programs, and knows what isolates them."""

    def describe_isolation(self) -> Isolation: ...


@final
class FunctionTool:
    """Function as a `types.Tool`.

    `schema` has the form of chat templates and the OpenAI API:
    `{"type": "function", "function": {"name", "description", "parameters"}}`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Wrap a function.

        Raises UserError if the function has no docstring, or an argument has no type hint or
        description, or a type without a JSON schema: the model would not know how to call it.
        """
        self.function = function
        self.name: str = function.__name__
        description, fields = _describe(function)
        try:
            self._arguments = _make_arguments_adapter(self.name, fields)
            parameters = simplify_schema(self._arguments.json_schema())
        except PydanticUserError as error:
            reason = error.message.partition(". ")[0]
            raise UserError(
                f"An argument of the tool '{self.name}' has a type that a model cannot write"
                f" ({reason}); use text, numbers, lists and mappings."
            ) from error
        self.schema: dict[str, Any] = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": description,
                "parameters": parameters,
            },
        }

    def with_function(self, function: Callable[..., Any]) -> FunctionTool:
        """Return the same tool with another function of the same signature, such as one per
        rollout. The schema is shared."""
        other = copy(self)
        other.function = function
        return other

    async def __call__(self, /, **arguments: Any) -> str:
        """Check the arguments, run the function, and return text; non-strings are returned as JSON.

        A plain function runs in a dedicated thread, so it never blocks other trajectories. An async
        function runs in the event loop.

        Raises:
            ArgumentError: the arguments do not match the schema.
            ToolError: raised by the function.
        """
        try:
            checked = self._arguments.validate_python(arguments)
        except ValidationError as error:
            raise ArgumentError(_format_argument_error(self.name, error)) from error
        if inspect.iscoroutinefunction(self.function):
            return _to_text(await self.function(**checked))

        def run() -> str | Awaitable[Any]:
            result = self.function(**checked)
            return result if inspect.isawaitable(result) else _to_text(result)

        result = await run_in_thread(run)
        # a decorator may hide that the function is async
        return result if isinstance(result, str) else _to_text(await result)


def _to_text(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def tool(function: Callable[..., Any]) -> FunctionTool:
    """Turn a typed function, sync or async, into a tool that the policy can call."""
    return FunctionTool(function)


def _describe(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Return (description of the function, mapping of argument name to type with description)."""
    name = function.__name__
    docs = docstring_parser.parse(inspect.getdoc(function) or "")
    if not docs.description:
        raise UserError(f"The tool '{name}' has no docstring; describe there what it does.")
    descriptions = {param.arg_name: param.description for param in docs.params}
    hints = read_type_hints(function, name)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        argument = parameter.name
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UserError(f"The tool '{name}' takes '{parameter}'; give each argument a name.")
        if argument not in hints:
            raise UserError(
                f"Argument '{argument}' of the tool '{name}' has no type hint; add one."
            )
        if not descriptions.get(argument):
            raise UserError(
                f"Argument '{argument}' of the tool '{name}' is not described; "
                "add a line under 'Args:' in the docstring."
            )
        annotated: Any = Annotated[hints[argument], Field(description=descriptions[argument])]
        required = parameter.default is parameter.empty
        fields[argument] = annotated if required else NotRequired[annotated]
    return docs.description.strip(), fields


def read_type_hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return the type hints of the function of a tool. Raises UserError for an unknown one."""
    try:
        return get_type_hints(function, include_extras=True)
    except (AttributeError, NameError) as error:
        raise UserError(
            f"the tool '{name}' cannot be read, because a type hint is unknown ({error}); import"
            " the type at the top of its module."
        ) from error


def _make_arguments_adapter(name: str, fields: dict[str, Any]) -> TypeAdapter[dict[str, Any]]:
    """Return a validator of keyword arguments: unknown names are rejected, omitted defaults stay
    omitted."""
    typed_dict: Any = TypedDict
    arguments: Any = with_config(ConfigDict(extra="forbid"))(typed_dict(name, fields))
    return TypeAdapter(arguments)


# Keywords of JSON schemas: those that map user-defined names to schemas, and those with values.
_NAMED_SCHEMA_KEYS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_VALUE_KEYS = ("default", "const", "enum", "example", "examples")


def simplify_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema in the form of transformers: `type` first, without keys that only lengthen
    the prompt. A schema that is not an object, such as `true`, is returned unchanged."""
    simplified: dict[str, Any] = {}
    for key, value in sorted(schema.items(), key=lambda item: item[0] != "type"):
        if key in _NAMED_SCHEMA_KEYS and isinstance(value, dict):
            simplified[key] = {name: _simplify_inner(inner) for name, inner in value.items()}
        elif isinstance(value, dict) and key not in _VALUE_KEYS:
            simplified[key] = simplify_schema(value)
        elif key not in ("title", "additionalProperties"):
            simplified[key] = value
    return simplified


def _simplify_inner(schema: Any) -> Any:
    return simplify_schema(schema) if isinstance(schema, dict) else schema


def _format_argument_error(name: str, error: ValidationError) -> str:
    """Return a message for the model, e.g. `Wrong arguments for search: query: Field required.`"""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    messages = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in details]
    return f"Wrong arguments for {name}: {'; '.join(messages)}."
