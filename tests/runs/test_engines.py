from pathlib import Path
from typing import Any

import pytest

from engine_parity import TOKENIZER, sharp_model
from fieldcraft.config.choices import EngineConfig, EngineFeatures
from fieldcraft.config.components import BUILTIN_COMPONENTS, ENGINE_FEATURES, ComponentKind
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.resources import RunResources
from fieldcraft.extensions.vllm.engine import VllmEngine
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.engines import make_engine, make_local_engine
from fieldcraft.types import UserError

URL = "engine.urls=[http://127.0.0.1:9]"
FROZEN = [f"stages.rl2.{key}" for key in ("observations=simulated", "simulator=frozen")]


class UserEngine:
    """A user-defined engine."""

    def __init__(self, model: Any, resources: RunResources, size: int = 1) -> None:
        self.size, self.resources = size, resources

    def generate(self) -> None: ...
    def release(self) -> None: ...
    def sleep(self) -> None: ...
    def snapshot_weights(self) -> None: ...
    def update_weights(self) -> None: ...


class OneModelEngine(UserEngine):
    """A user-defined engine that samples from one model at a time."""

    features = EngineFeatures(several_models=False)


class Half:
    def generate(self) -> None: ...


def made(folder: Path, *overrides: str) -> Any:
    model = sharp_model(folder / "model", "qwen3")
    recipe = load_recipe("smoke", list(overrides))
    return make_engine(recipe, model, TOKENIZER, 1, RunResources(folder))


def test_engines_by_name_and_with_settings(tmp_path: Path) -> None:
    assert isinstance(made(tmp_path), LocalEngine)
    assert made(tmp_path, "engine.max_batched_tokens=7").max_batched_tokens == 7
    assert isinstance(made(tmp_path, "engine=vllm", URL), VllmEngine)
    assert isinstance(made(tmp_path, "engine.name=vllm", URL), VllmEngine)
    mine = made(tmp_path, f"engine={__name__}:UserEngine", "engine.size=3")
    assert (mine.size, mine.resources.folder) == (3, tmp_path)


def test_an_agent_keeps_the_local_engine(tmp_path: Path) -> None:
    recipe = load_recipe("smoke", ["engine=vllm", URL])
    model = sharp_model(tmp_path, "qwen3")
    assert isinstance(make_local_engine(recipe, model, TOKENIZER, 1), LocalEngine)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine=vlm"], "unknown engine 'vlm'"),
        (["engine=vllm", URL, "engine.pyton=a"], "has no setting 'pyton'; did you mean 'python'"),
        (["engine=vllm"], "needs either engine.python"),
        (
            ["engine=vllm", URL, "engine.kv_cache_gb=-1"],
            "the setting 'kv_cache_gb' of the engine 'vllm'",
        ),
        ([f"engine={__name__}:Half"], "has no release, sleep, snapshot_weights, update_weights"),
        (["engine=vllm", URL, *FROZEN], "'rl2' has simulator: frozen"),
    ],
)
def test_mistakes_are_sentences(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        made(tmp_path, *overrides)


def test_an_engine_states_what_it_can_do() -> None:
    assert ENGINE_FEATURES.keys() <= BUILTIN_COMPONENTS[ComponentKind.ENGINE].keys()
    assert EngineConfig().features.in_process
    assert EngineConfig(name="vllm").features.kv_cache_gb == 1.0
    for name in (f"{__name__}:UserEngine", "no_such_module:Engine", "nothing"):
        assert EngineConfig(name=name).features == EngineFeatures()
    load_recipe("smoke", [*FROZEN, f"engine={__name__}:UserEngine"])
    with pytest.raises(UserError, match="OneModelEngine holds one at a time"):
        load_recipe("smoke", [*FROZEN, f"engine={__name__}:OneModelEngine"])


@pytest.mark.long
def test_servers_and_pythons_are_looked_for_before_a_run(tmp_path: Path) -> None:
    for setting, message in (
        (URL, "start the server"),
        ("engine.python=/nowhere", "is not a working"),
    ):
        recipe = load_recipe("smoke", ["engine=vllm", setting])
        problems = check_recipe(recipe, tmp_path, lambda *_: None)
        assert len(problems) == 1
        assert message in problems[0]
