"""List of a folder's requests other than being read as data."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.recipes.permissions import (
    PERMISSIONS,
    find_escaping_links,
    find_permission_requests,
)
from former_keys import with_former_keys


def names(data: dict[str, Any], folder: Path = Path("there")) -> list[tuple[str, str]]:
    return [(ask.name, ask.key) for ask in find_permission_requests(data, folder)]


@pytest.mark.parametrize(
    ("data", "name", "key"),
    [
        ({"tools": [{"mcp": "sh -c x"}]}, "mcp", "tools.0.mcp"),
        ({"tools": [{"name": "mcp", "mcp": "http://host/mcp"}]}, "mcp", "tools.0.mcp"),
        ({"tools": [{"env": ["HF_TOKEN"]}]}, "variable", "tools.0.env.0"),
        ({"tools": ["mine:find"]}, "module", "tools.0"),
        ({"tools": [{"name": "mine:find"}]}, "module", "tools.0.name"),
        (
            {"tools": [{"name": "python", "allow_missing_layers": ["seccomp"]}]},
            "waive",
            "tools.0.allow_missing_layers.0",
        ),
        ({"tools": [{"name": "python", "libraries": ["x"]}]}, "module", "tools.0.libraries.0"),
        ({"tools": [{"name": "python", "files": "data"}]}, "file", "tools.0.files"),
        ({"tools": [{"name": "python", "url": "host:80"}]}, "address", "tools.0.url"),
        ({"tools": [{"name": "python", "backend": "e2b"}]}, "address", "tools.0.backend"),
        (
            {"environment": {"name": "command", "backend": {"name": "e2b"}}},
            "address",
            "environment.backend.name",
        ),
        (
            {"tools": [{"name": "python", "backend": {"name": "e2b"}}]},
            "address",
            "tools.0.backend.name",
        ),
        (
            {"tools": [{"name": "python", "backend": {"name": "container", "image": "x"}}]},
            "command",
            "tools.0.backend.image",
        ),
        ({"tools": [{"name": "python", "backend": "mine:Place"}]}, "module", "tools.0.backend"),
        ({"tools": [{"name": "crawl_page"}]}, "address", "tools.0.name"),
        ({"tools": [{"name": "web_search", "provider": "brave"}]}, "address", "tools.0.name"),
        ({"tools": [{"cache": "../../cache"}]}, "file", "tools.0.cache"),
        ({"tools": [{"allow_hosts": ["localhost"]}]}, "address", "tools.0.allow_hosts.0"),
        ({"dialect": "mine:Dialect"}, "module", "dialect"),
        ({"verdict_reward": "mine:Right"}, "module", "verdict_reward"),
        ({"world": {"name": "mine:World"}}, "module", "world.name"),
        ({"environment": {"name": "mine:Env"}}, "module", "environment.name"),
        ({"environment": {"agent": "mine:answer"}}, "module", "environment.agent"),
        ({"environment": {"command": ["sh", "-c", "x"]}}, "command", "environment.command"),
        ({"environment": {"name": "command", "run": "x"}}, "command", "environment.run"),
        ({"environment": {"writable": ["/"]}}, "file", "environment.writable.0"),
        ({"environment": {"taskset": "mine"}}, "module", "environment.taskset"),
        ({"environment": {"env": "Lake-v1"}}, "module", "environment.env"),
        ({"environment": {"python": "/usr/bin/x"}}, "command", "environment.python"),
        ({"environment": {"url": "http://host"}}, "address", "environment.url"),
        ({"engine": {"name": "vllm", "python": "x"}}, "command", "engine.python"),
        ({"engine": {"urls": ["http://host"]}}, "address", "engine.urls.0"),
        ({"engine": {"name": "vllm", "weight_folder": "weights"}}, "file", "engine.weight_folder"),
        ({"search": {"url": "http://host"}}, "address", "search.url"),
        ({"search": {"encoder": "their/model"}}, "address", "search.encoder"),
        ({"judge": {"url": "http://host"}}, "address", "judge.url"),
        ({"evaluation": {"tasks": {"a": "a.jsonl"}}}, "file", "evaluation.tasks.a"),
        ({"environment": {"name": "harbor", "tasks": "mine"}}, "file", "environment.tasks"),
        ({"evaluation": {"workflows": ["mine:tree"]}}, "module", "evaluation.workflows.0"),
        ({"stages": {"rl": {"rewards": {"mine:R": 1}}}}, "module", "stages.rl.rewards.mine:R"),
        ({"settings": {"any": "~/.ssh/id"}}, "file", "settings.any"),
        ({"index": "/"}, "file", "index"),
        # free text in other sections
        ({"tools": [{"fold": {"prompt": "mine:x"}}]}, "module", "tools.0.fold.prompt"),
        ({"environment": {"names": "mine:x"}}, "module", "environment.names"),
        # former keys
        ({"recipe": "r", "correct": "mine:Right"}, "module", "verdict_reward"),
        (
            {"recipe": "r", "tools": [{"name": "python", "waive": ["seccomp"]}]},
            "waive",
            "tools.0.allow_missing_layers.0",
        ),
        (
            {"recipe": "r", "engine": {"name": "vllm", "exchange": "weights"}},
            "file",
            "engine.weight_folder",
        ),
    ],
)
def test_what_is_asked_for(data: dict[str, Any], name: str, key: str) -> None:
    assert (name, key) in names(data)


def test_a_key_goes_where_an_address_is() -> None:
    judge = {"url": "http://host", "api_key_env": "AWS_SECRET"}
    assert ("variable", "judge.api_key_env") in names({"judge": judge})
    assert names({"judge": {**judge, "url": None}}) == []
    assert ("variable", "tools.0.api_key_env") in names({"tools": [{"api_key_env": "KEY"}]})


def test_what_is_inside_or_absent_is_data(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    assert names({"index": str(tmp_path / "index")}, tmp_path) == []
    assert names({"index": "/nowhere/at/all"}, tmp_path) == []
    (tmp_path / "link").symlink_to("/")
    assert names({"index": str(tmp_path / "link")}, tmp_path) == [("file", "index")]


def test_an_encoder_asks_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    assert names({"encoder": str(tmp_path / "encoder")}, tmp_path) == [("file", "encoder")]


def test_plain_recipes_ask_for_nothing() -> None:
    texts = {"instruction": "See http://host: /etc, a:b", "system_prompt": "a:b"}
    texts |= {"chat_template_kwargs": {"x": "/"}}
    tool = {"name": "search", "names": ["a(b)"], "eval_names": "c"}
    fold = {"trigger_tokens": 9, "prompt": "See a:b"}
    recipe = Recipe(name="a:b", stages={}, tools=[tool], budget={"fold": fold}, **texts)
    assert names(dump_recipe(recipe)) == []
    assert names(with_former_keys(dump_recipe(recipe))) == []


@given(st.recursive(st.text() | st.none(), lambda inner: st.dictionaries(st.text(), inner)))
def test_any_json_can_be_listed(value: Any) -> None:
    for ask in find_permission_requests({"tools": value}, Path("there")):
        assert ask.name in PERMISSIONS
        assert str(ask).isprintable()


PLACES = st.lists(st.sampled_from(["tools", "name", "x", "stages"]), min_size=1)


@given(PLACES.filter(lambda place: place != ["name"]))  # free text of the recipe itself
def test_a_module_is_found_wherever_it_is(place: list[str]) -> None:
    data: Any = "mine:part"
    for key in reversed(place):
        data = {key: data}
    assert ("module", ".".join(place)) in names(data)


def test_links_to_the_blobs_of_a_cache_are_data(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    folder.mkdir(parents=True)
    (blobs / "123").write_text("{}")
    (folder / "config.json").symlink_to(blobs / "123")
    assert find_escaping_links(folder, {}) == []


def test_a_part_of_an_installed_package_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "plugin-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[fieldcraft.tools]\nshell = plugin:Shell\n")
    assert names({"tools": ["shell"]}) == []
    monkeypatch.syspath_prepend(tmp_path)
    assert names({"tools": ["shell"]}) == [("module", "tools.0")]
