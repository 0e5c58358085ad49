import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Literal

import pytest

from fieldcraft.tools.base import FunctionTool, simplify_schema, tool
from fieldcraft.types import ArgumentError, ToolError, UserError


@tool
def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> str:
    """The weather forecast.

    It is never wrong.

    Args:
        city: name of the
            city.
        days: how many days ahead.
        unit: of the temperature.
    """
    return f"{city} {days + 1} {unit}"


def call(function: FunctionTool, **arguments: object) -> str:
    return asyncio.run(function(**arguments))


def test_the_schema_is_the_chat_templates_form():
    assert weather.name == "weather"
    assert weather.schema == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather forecast.\n\nIt is never wrong.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "name of the\ncity."},
                    "days": {"type": "integer", "description": "how many days ahead."},
                    "unit": {
                        "type": "string",
                        "description": "of the temperature.",
                        "enum": ["C", "F"],
                    },
                },
                "required": ["city"],
            },
        },
    }
    assert list(weather.schema["function"]["parameters"]) == ["type", "properties", "required"]


def test_arguments_may_be_called_like_things_of_pydantic_and_json_schema():
    @tool
    def book(
        title: str, schema: dict[str, int], copy: bool, additionalProperties: int, type: str
    ) -> str:
        """A book.

        Args:
            title: a.
            schema: b.
            copy: c.
            additionalProperties: d.
            type: e.
        """
        return f"{title} {schema} {copy} {additionalProperties} {type}"

    properties = book.schema["function"]["parameters"]["properties"]
    assert list(properties) == ["title", "schema", "copy", "additionalProperties", "type"]
    assert properties["title"] == {"type": "string", "description": "a."}
    assert call(book, title="x", schema={"y": 1}, copy=True, additionalProperties=2, type="z") == (
        "x {'y': 1} True 2 z"
    )


def test_defaults_and_converted_arguments_reach_the_function():
    assert call(weather, city="Rome") == "Rome 2 C"
    assert call(weather, city="Rome", days="2", unit="F") == "Rome 3 F"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "Wrong arguments for weather: city: Field required."),
        (
            {"city": 3, "town": "Rome"},
            "Wrong arguments for weather: city: Input should be a valid string; "
            "town: Extra inputs are not permitted.",
        ),
        (
            {"city": "Rome", "unit": "K"},
            "Wrong arguments for weather: unit: Input should be 'C' or 'F'.",
        ),
    ],
)
def test_the_model_is_told_about_wrong_arguments(arguments, told):
    with pytest.raises(ArgumentError) as error:
        call(weather, **arguments)
    assert str(error.value) == told


def test_an_async_function_runs_in_the_event_loop():
    @tool
    async def where() -> str:
        """Which thread this is."""
        return threading.current_thread().name

    assert call(where) == threading.current_thread().name


def test_an_async_function_may_have_a_plain_decorator():
    def decorate(function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapped

    @tool
    @decorate
    async def count() -> dict[str, str]:
        """Say which thread this is."""
        return {"thread": threading.current_thread().name}

    assert call(count) == f'{{"thread": "{threading.current_thread().name}"}}'


def test_plain_functions_run_side_by_side():
    both_are_running = threading.Barrier(2, timeout=300)

    @tool
    def meet() -> str:
        """Wait for another call."""
        both_are_running.wait()
        return "met"

    async def twice() -> list[str]:
        return await asyncio.gather(meet(), meet())

    assert asyncio.run(twice()) == ["met", "met"]


def test_what_is_no_string_becomes_json():
    @tool
    def add(a: int, b: int) -> dict[str, int]:
        """Add.

        Args:
            a: one.
            b: another.
        """
        return {"größe": a + b}

    assert call(add, a=2, b=3) == '{"größe": 5}'


def test_only_what_the_tool_calls_a_tool_error_is_one():
    @tool
    def fail(kindly: bool) -> str:
        """Fail.

        Args:
            kindly: whether to tell.
        """
        if kindly:
            raise ToolError("Not today.")
        raise ZeroDivisionError

    with pytest.raises(ToolError, match="Not today") as raised:
        call(fail, kindly=True)
    assert not isinstance(raised.value, ArgumentError)
    with pytest.raises(ZeroDivisionError):
        call(fail, kindly=False)


def undocumented(city: str) -> str:
    return city


def untyped(city) -> str:  # type: ignore[no-untyped-def]
    """A.

    Args:
        city: b.
    """
    return city


def undescribed(city: str) -> str:
    """A."""
    return city


def anything(**cities: str) -> str:
    """A."""
    return str(cities)


def takes_an_object(city: threading.Thread) -> str:
    """A.

    Args:
        city: b.
    """
    return city.name


def takes_a_function(city: Callable[[int], int]) -> str:
    """A.

    Args:
        city: b.
    """
    return str(city(1))


def takes_the_unknown(city: "Town") -> str:  # type: ignore[name-defined]  # noqa: F821
    """A.

    Args:
        city: b.
    """
    return str(city)


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (undocumented, "The tool 'undocumented' has no docstring"),
        (untyped, "Argument 'city' of the tool 'untyped' has no type hint"),
        (undescribed, "Argument 'city' of the tool 'undescribed' is not described"),
        (takes_an_object, "An argument of the tool 'takes_an_object' has a type that a model can"),
        (takes_a_function, "An argument of the tool 'takes_a_function' has a type that a model"),
        (takes_the_unknown, "the tool 'takes_the_unknown' cannot be read, because a type hint is"),
        (anything, r"The tool 'anything' takes '\*\*cities: str'"),
    ],
)
def test_a_function_the_model_could_not_call_is_refused(function, complaint):
    with pytest.raises(UserError, match=complaint):
        tool(function)


def test_titles_of_a_schema_are_left_out_and_arguments_of_that_name_are_not() -> None:
    simplified = {
        "type": "object",
        "properties": {
            "title": {"type": "string", "default": {"title": "t"}},
            "properties": True,
        },
        "$defs": {"properties": {"type": "object", "properties": {"title": {}}}},
    }
    full = {"title": "S", "additionalProperties": False, **simplified}
    assert simplify_schema(full) == simplified
