"""Tools in a recipe: their settings, their names, and messages about errors."""

from pathlib import Path

import pytest
import yaml

from fieldcraft.config.choices import ToolConfig
from fieldcraft.config.recipe import dump_recipe
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.types import UserError


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    stage = {"type": "rl", "steps": 5, "optim": {"lr": 0.001}}
    file.write_text(
        yaml.safe_dump({"name": "small", "world": {"name": "atlas"}, "stages": {"rl": stage}})
    )
    return str(file)


def test_tools_are_names_or_names_with_settings(path: str) -> None:
    assert load_recipe(path, []).tools == (ToolConfig(name="search"),)
    recipe = load_recipe(path, ["tools=[search, 'my:population', {name: 'my:Browser', pages: 3}]"])
    assert [(tool.name, tool.settings) for tool in recipe.tools] == [
        ("search", {}),
        ("my:population", {}),
        ("my:Browser", {"pages": 3}),
    ]
    assert dump_recipe(recipe)["tools"][1:] == [
        {"name": "my:population", "names": [], "eval_names": [], "cost": 1.0},
        {"name": "my:Browser", "names": [], "eval_names": [], "cost": 1.0, "pages": 3},
    ]
    assert parse_recipe(dump_recipe(recipe)) == recipe
    assert load_recipe(path, ["tools=[]"]).tools == ()


def test_a_tool_may_have_several_names(path: str) -> None:
    names = "names: [find(text), look], eval_names: ask"
    recipe = load_recipe(path, [f"tools=[{{name: search, {names}}}, {{name: 'a:b', pages: 3}}]"])
    search, other = recipe.tools
    assert (search.names, search.eval_names, search.settings) == (
        ("find(text)", "look"),
        ("ask",),
        {},
    )
    assert search.all_names == {"find", "look", "ask"}
    assert (other.names, other.all_names, other.settings) == ((), {"a:b"}, {"pages": 3})
    assert parse_recipe(dump_recipe(recipe)) == recipe


def test_servers_are_tools_without_names_of_their_own(path: str) -> None:
    """Two servers are two tools, and their names are not known yet."""
    given = "tools=[{mcp: python a.py, only: [x]}, {mcp: 'http://h/mcp'}, 'a:b']"
    recipe = load_recipe(path, [given])
    assert [(tool.name, tool.settings) for tool in recipe.tools] == [
        ("mcp", {"mcp": "python a.py", "only": ["x"]}),
        ("mcp", {"mcp": "http://h/mcp"}),
        ("a:b", {}),
    ]
    assert [tool.all_names for tool in recipe.tools] == [set(), set(), {"a:b"}]
    assert parse_recipe(dump_recipe(recipe)) == recipe


def test_a_place_in_a_list_can_be_set(path: str) -> None:
    given = "tools=[search, {name: 'a:b', pages: 3}]"
    recipe = load_recipe(path, [given, "tools.1.pages=4", "tools.0=python"])
    assert [(tool.name, tool.settings) for tool in recipe.tools] == [
        ("python", {}),
        ("a:b", {"pages": 4}),
    ]
    for place in ("2", "-1", "name"):
        with pytest.raises(UserError, match="cannot be set: the list has the indices 0 to 1"):
            load_recipe(path, [given, f"tools.{place}=python"])


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("tools=[search, search]", ["'tools'", "names 'search' twice"]),
        ("tools=[{pages: 3}]", ["'tools.0.name' is missing"]),
        ("tools=[3]", ["'tools.0'"]),
        ("tools=[{name: search, topk: 3}]", ["'tools.0'", "write search: {topk: ...}"]),
        ("tools=[search, {name: 'a:b', names: search}]", ["'tools'", "names 'search' twice"]),
        (
            "tools=[{name: search, names: ['f(a, a)']}]",
            ["'tools.0.names'", "two arguments of the same name"],
        ),
        (
            "tools=[{name: search, eval_names: f x}]",
            ["'tools.0.eval_names'", "as in find or find(text)"],
        ),
        (
            "tools=[{name: search, eval_names: [f, search]}]",
            ["'tools.0'", "remove it from eval_names"],
        ),
        ("tools=[{mcp: x, names: f}]", ["'tools.0'", "use prefix instead"]),
        ("tools=[{name: search, names: f, eval_names: f(a)}]", ["'f' is also used in training"]),
    ],
)
def test_a_bad_tool_is_named_in_one_sentence(path: str, override: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(path, [override])
    for part in parts:
        assert part in str(caught.value)
