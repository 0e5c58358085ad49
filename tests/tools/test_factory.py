"""Tools by name: every supported form, and an error message for every unsupported one."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.config.choices import ToolConfig
from fieldcraft.tools.base import FunctionTool, tool
from fieldcraft.tools.factory import (
    apply_server_config,
    apply_tool_config,
    coerce_tool,
    collect_costs,
    make_tool,
    unwrap_tool,
)
from fieldcraft.types import AnyTool, StatefulTool, Task, Tool, UserError


def schema(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}


def population(city: str) -> str:
    """How many people live in a city.

    Args:
        city: its name.
    """
    return f"{city} has 7"


decorated = tool(population)


class Browser:
    name = "browse"
    schema = schema("browse")

    def __init__(self, pages: int = 1, *, home: str = "a") -> None:
        if pages > 9:
            raise UserError("pages must be at most 9.")
        self.pages, self.home = 10 // pages, home

    async def __call__(self, **arguments: Any) -> str:
        return f"{self.pages} {self.home}"


class Session:
    name = "python"
    schema = schema("python")

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        yield Browser()


def browser_from(url: str) -> Browser:
    return Browser(home=url)


def session_from() -> "StatefulTool | None":
    return Session()


def read(found: Any, **settings: Any) -> Tool | StatefulTool:
    return coerce_tool(found, "mine", settings)


def answer(tool: Tool | StatefulTool, **arguments: Any) -> str:
    assert isinstance(tool, Tool)
    return asyncio.run(tool(**arguments))


# -- supported names -------------------------------------------------------------------------------


def test_functions() -> None:
    assert read(decorated) is decorated
    tool = read(population)
    assert isinstance(tool, FunctionTool)
    assert (tool.name, answer(tool, city="Rome")) == ("population", "Rome has 7")


def test_classes_and_factories_take_settings() -> None:
    assert answer(read(Browser)) == "10 a"
    assert (
        answer(read(Browser, pages="2", home="b")) == "5 b"
    )  # converted, as the values of a recipe are
    assert answer(read(browser_from, url="c")) == "10 c"


def test_objects_and_stateful_tools() -> None:
    browser = Browser(5)
    assert read(browser) is browser
    assert isinstance(read(Session), StatefulTool)
    assert isinstance(read(session_from), StatefulTool)


def test_a_name_may_be_of_the_users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'def add(a: int) -> int:\n    """Add.\n\n    Args:\n        a: one.\n    """\n'
    (tmp_path / "my_tools_of_a_test.py").write_text(f"{source}    return a + 1\n")
    monkeypatch.chdir(tmp_path)
    assert answer(make_tool("my_tools_of_a_test:add", {}), a=1) == "2"


# -- unsupported names -----------------------------------------------------------------------------


class Nameless(Browser):
    def __getattribute__(self, key: str) -> Any:
        return super().__getattribute__(key)

    def __dir__(self) -> list[str]:
        return ["schema"]


class Inert:
    name = "inert"
    schema = schema("inert")


class OtherName(Browser):
    name = "other"


class NoSchema:
    name = "bare"

    async def __call__(self) -> str:
        return ""


class BadSchema(Browser):
    schema = {"name": "browse"}  # noqa: RUF012


class Blocking(Browser):
    def __call__(self, **arguments: Any) -> str:  # type: ignore[override]
        return ""


class Failing(Browser):
    def __init__(self) -> None:
        raise ZeroDivisionError("a defect")


class Unreadable(Browser):
    def __init__(self, x: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821
        super().__init__()


def unreadable(x: int) -> "Missing":  # type: ignore[name-defined]  # noqa: F821
    return x


def undocumented(city: str) -> str:
    return city


@pytest.mark.parametrize(
    ("found", "settings", "sentence"),
    [
        (3, {}, "'mine' is not a tool: it has no 'name'"),
        (Nameless(), {}, "it has no 'name'"),
        (NoSchema, {}, "it has no 'schema'"),
        (Inert, {}, "can neither be called nor opened"),
        (OtherName, {}, "has the name 'other' and, in its schema, 'browse'"),
        (BadSchema, {}, "schema of the tool 'mine' is not in the form"),
        (Blocking, {}, "its __call__ is not async"),
        (Failing, {}, r"cannot be made from its settings \(ZeroDivisionError: a defect\)"),
        (Unreadable, {}, r"settings of the tool 'mine' cannot be read \(name 'Missing'"),
        (unreadable, {}, r"a type hint is unknown \(name 'Missing'"),
        (undocumented, {}, "The tool 'undocumented' has no docstring"),
        (Browser, {"page": 1}, "has no setting 'page'; did you mean 'pages'"),
        (Session, {"page": 1}, "has no setting 'page'; it accepts no settings"),
        (
            Browser,
            {"pages": "many"},
            "the setting 'pages' of the tool 'mine' is wrong: it must be a whole",
        ),
        (Browser, {"pages": 0}, r"\(ZeroDivisionError: .*\): correct them"),
        (Browser, {"pages": 10}, "pages must be at most 9"),
        (browser_from, {}, "the tool 'mine' needs the setting 'url'"),
        (decorated, {"a": 1}, "the tool 'mine' does not accept settings: remove 'a'"),
        (population, {"a": 1}, "does not accept settings: remove 'a'"),
        (Browser(), {"a": 1}, "does not accept settings: remove 'a'"),
    ],
)
def test_a_bad_shape_is_answered_with_one_sentence(
    found: Any, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        read(found, **settings)
    assert str(caught.value).endswith((".", "?"))
    assert not re.search(r"[.?!] [A-Z]|\n", str(caught.value))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("serch", r"unknown tool 'serch' \(did you mean 'search'"),
        ("no_such_module:Tool", r"the import of 'no_such_module' failed \(ModuleNotFoundError"),
        ("json:lods", "has no 'lods'; did you mean 'loads'"),
        ("json:__doc__", "'json:__doc__' is not a tool"),
    ],
)
def test_names_that_lead_nowhere(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_tool(name, {})


class Listed:
    """A tool as listed by a server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.schema = schema(name)

    async def __call__(self, **arguments: Any) -> str:
        return "so"


def test_a_server_has_one_cost_or_one_for_each_of_its_tools() -> None:
    tools: list[AnyTool] = [Listed("find"), Listed("read")]

    def costs(cost: Any) -> dict[str, float]:
        choice = ToolConfig.model_validate({"mcp": "http://x/mcp", "cost": cost})
        return collect_costs(apply_server_config(tools, choice))

    assert costs(1) == {"find": 1, "read": 1}
    assert costs(2.5) == {"find": 2.5, "read": 2.5}
    assert costs({"read": 0}) == {"find": 1, "read": 0}
    with pytest.raises(UserError, match=r"cost names 'reed'.*'read'"):
        costs({"reed": 2})


def test_a_tool_without_names_and_prices_is_the_tool_itself() -> None:
    tool = Listed("find")
    assert apply_tool_config(tool, ToolConfig(name="find")) is tool
    priced = apply_tool_config(tool, ToolConfig(name="find", cost=3))
    assert (priced.name, priced.schema, unwrap_tool(priced)) == ("find", tool.schema, tool)
