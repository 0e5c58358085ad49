"""No URL with a secret enters a recipe, and none is shown in full."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fieldcraft
from checkpoints import write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.config.url_secrets import ExposedSecretError, find_secret, mask_secrets
from fieldcraft.recipes.loading import build_recipe

SECRET = "hunter2"
HOST = "host:8000"
WITH_USER = f"http://ada:{SECRET}@{HOST}"
WITH_TOKEN = f"http://{HOST}/search?topk=3&access_token={SECRET}"
KEYS: dict[str, Any] = {
    "search.url": lambda url: {"search": {"url": url}},
    "engine.urls.0": lambda url: {"engine": {"name": "vllm", "urls": [url]}},
    "teacher.url": lambda url: {"teacher": {"url": url, "model": "m"}},
    "teacher.members.a.url": lambda url: {
        "teacher": {"team": "afm", "members": {"a": {"url": url}}}
    },
    "judge.url": lambda url: {"judge": {"url": url, "model": "m"}},
    "tools.0.mcp": lambda url: {"tools": [{"mcp": url}]},
    "tools.0.url": lambda url: {"tools": [{"name": "python", "url": url}]},
    "tools.0.summary.url": lambda url: {
        "tools": [{"name": "crawl_page", "summary": {"url": url, "model": "m"}}]
    },
    "environment.url": lambda url: {"environment": {"name": "openenv", "url": url}},
    "trackers.0.server_url": lambda url: {"trackers": [{"name": "trackio", "server_url": url}]},
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("url", [WITH_USER, WITH_TOKEN, f"http://{SECRET}@{HOST}"])
def test_every_key_with_an_address_refuses_secrets(key: str, url: str) -> None:
    with pytest.raises(ExposedSecretError) as refused:
        build_recipe({"name": "mine", "stages": {}, **KEYS[key](url)})
    assert f"'{key}'" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_secret_in_a_command_is_found(tmp_path: Path) -> None:
    with pytest.raises(ExposedSecretError):
        build_recipe({"name": "x", "stages": {}, "tools": [{"mcp": f"sh -c 'curl {WITH_USER}'"}]})


def test_texts_for_the_model_may_say_anything() -> None:
    fold = {"trigger_tokens": 9, "prompt": WITH_USER}
    texts = {"instruction": WITH_USER, "system_prompt": WITH_TOKEN, "budget": {"fold": fold}}
    build_recipe({"name": "x", "stages": {}, **texts})
    with pytest.raises(ExposedSecretError):
        build_recipe({"name": "x", "stages": {}, "tools": [{"name": "a:b", "prompt": WITH_USER}]})


def test_the_options_and_python_refuse_them_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    capsys.readouterr()
    for command in (["ask", "Who?"], ["serve", "agent"]):
        assert status(*command, "--model", model, "--search-url", WITH_USER) == 2
        assert SECRET not in sentence(capsys)
    judge = ("--judge-url", WITH_TOKEN, "--judge-model", "m")
    assert status("eval", "--model", model, "--tasks", model, *judge) == 2
    message = sentence(capsys)
    assert "'--judge-url' contains a value of 'access_token'" in message
    assert SECRET not in message
    with pytest.raises(ExposedSecretError):
        fieldcraft.load(model).with_options(None, None, WITH_USER)
    with pytest.raises(ExposedSecretError):
        fieldcraft.load(model, search={"url": WITH_USER})


@pytest.mark.parametrize(
    "address",
    [
        f"http://ada:{SECRET}@{HOST}/x",
        f"http://ada:pa/{SECRET}@{HOST}/x",  # an unquoted password
        f"http://ada:{SECRET}@[::1/x",
        f"ada:{SECRET}@{HOST}",
        f"https://h/?apiKey={SECRET}",
        f"https://h/?a=b&X-Amz-Signature={SECRET}#c",
        f"https://h/?%74oken={SECRET}",
        f"https://h/?a=b#token={SECRET}",
        f"npx remote https://h/sse?api-key={SECRET} --quiet",
        f"wss://h/?sig={SECRET}",
    ],
)
def test_what_is_shown_holds_no_secret(address: str) -> None:
    assert find_secret(address) is not None
    assert SECRET not in mask_secrets(address)
    assert "***" in mask_secrets(address)


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:8000/v1",
        "https://host/search?q=keyword&monkey=1&topk=3",
        "https://registry/@scope/package",
        "python -m server --host localhost",
        "my_tools:find",
        "ada@example.org",
        "/a/path",
    ],
)
def test_others_are_shown_as_they_are(address: str) -> None:
    assert find_secret(address) is None
    assert mask_secrets(address) == address


@given(st.text())
@example("/0:0@0")
@example("ask user:secret@host")
def test_any_text_can_be_shown(text: str) -> None:
    masked = mask_secrets(text)
    assert mask_secrets(masked) == masked
    if find_secret(text) is None:
        assert masked == text


@given(
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=8),
    st.sampled_from(["http", "https", "wss"]),
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
)
def test_no_password_is_shown(password: str, scheme: str, host: str) -> None:
    assert password not in mask_secrets(f"{scheme}://Z:{password}@x/").replace("x/", "")
    assert mask_secrets(f"{scheme}://{host}/").endswith("/")


def test_a_key_of_a_search_server_is_for_that_server_alone(tmp_path: Path) -> None:
    search = {"url": f"http://{HOST}", "api_key_env": "SEARCH_KEY"}
    agent = fieldcraft.load(write_tiny_checkpoint(tmp_path / "model", "qwen2"), search=search)
    assert agent.recipe.search.api_key_env == "SEARCH_KEY"
    other = agent.with_options(None, None, "http://other")
    assert (other.recipe.search.url, other.recipe.search.api_key_env) == ("http://other", None)
    with pytest.raises(fieldcraft.UserError, match="set url, or remove api_key_env"):
        fieldcraft.load(agent.model, search={"api_key_env": "SEARCH_KEY"})
