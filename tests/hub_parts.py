"""Shared helpers of the hub tests: a local hub that the real clients talk to."""

from collections.abc import Iterator
from pathlib import Path

import datasets
import huggingface_hub
import pytest

from hub_server import Hub, serving_hub
from ports import NOBODY

NAME = "org/tiny-model"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Provide a hub without repositories, an empty cache, and no token."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with serving_hub() as served:
        ask_at(served.url, tmp_path / "cache", monkeypatch)
        yield served


def ask_at(url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure the clients to use a hub; they read the environment when they are imported."""
    monkeypatch.setenv("HF_ENDPOINT", url)
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "huggingface" / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", url)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", url)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache / "datasets")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", cache / "modules")


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forbid network access, as HF_HUB_OFFLINE does."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()


def nobody_answers(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure the clients to use a port without a hub."""
    ask_at(NOBODY, cache, monkeypatch)
