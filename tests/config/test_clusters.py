"""The section cluster of a recipe, and recipes that differ from another one only in it."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fieldcraft.cli.app import app
from fieldcraft.config.rl import Rl
from fieldcraft.recipes.files import deep_merge, read_recipe
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.types import UserError

VARIANTS = {"autocoa-7b": 16, "otc-search-7b": 16, "afm-web-32b": 32}  # and their devices


def refused(recipe: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, list(overrides))
    assert str(caught.value).endswith(".")
    return str(caught.value)


# -- unused processes, and processes that lack others -------------------------------------------


def test_a_cluster_of_everything_is_fine() -> None:
    keys = "{trainers: 4, context_parallel: 2, engines: 2, colocate: true}"
    cluster = load_recipe("smoke", [f"cluster={keys}"]).cluster
    assert (cluster.num_devices, cluster.trains_and_samples) == (4, True)
    assert load_recipe("smoke", []).cluster.num_devices == 0


def test_trainers_need_engines_where_something_is_sampled() -> None:
    assert "needs engines to sample" in refused("smoke", "cluster.trainers=2")
    load_recipe("smoke", ["cluster.trainers=2", "stages={}"])


def test_engines_are_local_or_servers_that_are_started() -> None:
    other = "engine={name: vllm, urls: [http://10.0.0.2:8000]}"
    assert "leave out one of the two" in refused("smoke", "cluster.engines=2", other)
    wide = ("cluster.engines=2", "cluster.tensor_parallel=2")
    assert "tensor_parallel=2 is for engine=vllm" in refused("smoke", *wide)
    load_recipe("smoke", [*wide, "engine={name: vllm, python: /vllm/bin/python}"])


def test_moments_are_those_that_can_be_cut() -> None:
    many = ("cluster.trainers=2", "cluster.engines=1")
    sentence = refused("smoke", *many, "stages.rl2.optim.optimizer_state=8bit")
    assert "stage 'rl2' has optim.optimizer_state=8bit" in sentence


# -- recipes that resemble others ---------------------------------------------------------------


def test_sections_are_merged_and_all_else_replaced() -> None:
    below = {"a": {"b": 1, "c": [1, 2]}, "d": 2, "e": {"f": 1}}
    above = {"a": {"c": [3], "g": 4}, "e": None}
    both = {"a": {"b": 1, "c": [3], "g": 4}, "d": 2, "e": None}
    assert deep_merge(below, above) == both
    assert below == {"a": {"b": 1, "c": [1, 2]}, "d": 2, "e": {"f": 1}}


def test_a_file_like_a_shipped_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    mine: dict[str, Any] = {"name": "mine", "extends": "smoke", "stages": {"rl2": {"steps": 9}}}
    path.write_text(yaml.safe_dump(mine))
    recipe, smoke = load_recipe(str(path), ["seed=3"]), load_recipe("smoke", [])
    assert (recipe.name, recipe.seed, recipe.stages["base"]) == ("mine", 3, smoke.stages["base"])
    rl, other = recipe.stages["rl2"], smoke.stages["rl2"]
    assert rl == other.model_copy(update={"steps": 9})
    path.write_text(yaml.safe_dump(mine | {"extends": "smok"}))
    assert "extends 'smok', which is not a built-in recipe" in refused(str(path))
    path.write_text(yaml.safe_dump(mine | {"extends": [1]}))
    assert "is not a built-in recipe" in refused(str(path))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_differs_in_its_processes_alone(name: str) -> None:
    given = [f"{key}={__file__}" for key in read_recipe(name)["required_paths"]]
    one, many = (load_recipe(n, given) for n in (name, f"{name}-cluster"))
    assert many.cluster.num_devices == VARIANTS[name]
    assert many.engine.name == "vllm"
    processes = {"name", "cluster", "engine", "max_num_seqs", "stages"}
    assert one.model_dump(exclude=processes) == many.model_dump(exclude=processes)
    assert list(one.stages) == list(many.stages)
    for stage, other in zip(one.stages.values(), many.stages.values(), strict=True):
        # a micro-batch has the same length: ranks of one context share it
        tokens = stage.optim.micro_batch_tokens // many.cluster.context_parallel
        plain = {"optimizer_state": "float32", "micro_batch_tokens": tokens}
        assert stage.optim.model_copy(update=plain) == other.optim
        # a stage that samples ahead has a higher default of the cap
        processes = {"optim", "asynchronous", "sampler_is_cap"}
        assert stage.model_dump(exclude=processes) == other.model_dump(exclude=processes)
        if isinstance(other, Rl):
            assert other.asynchronous.max_staleness == 1


# -- files with which other tools start runs ----------------------------------------------------


def test_the_manifest_starts_a_run_on_as_many_gpus_as_it_asks_for() -> None:
    text = (Path(__file__).parents[2] / "deploy/kuberay.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    program, command, recipe, *arguments, option, folder = shlex.split(spec["entrypoint"])
    assert (program, command, option) == ("fieldcraft", "run", "--out")
    assert folder.startswith("/shared/")
    keys = [word.partition("=")[0] for word in arguments]
    cluster = load_recipe(recipe, [f"{key}={__file__}" for key in keys]).cluster
    [workers] = spec["rayClusterSpec"]["workerGroupSpecs"]
    [container] = workers["template"]["spec"]["containers"]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert workers["replicas"] * gpus == cluster.num_devices


def test_servers_of_the_manifest_listen_where_their_services_send_requests() -> None:
    text = (Path(__file__).parents[2] / "deploy/servers.yaml").read_text()
    found = [*yaml.safe_load_all(text)]
    specs = {(part["kind"], part["metadata"]["name"]): part["spec"] for part in found}
    ports = {name: spec["ports"] for (kind, name), spec in specs.items() if kind == "Service"}
    assert ports.keys() == {"search", "sandbox"}
    command: Any = typer.main.get_command(app)
    for server in ports:
        [container] = specs["Deployment", server]["template"]["spec"]["containers"]
        program, group, name, *arguments = container["command"]
        options = command.commands[group].commands[name].make_context(name, arguments)
        port = options.params["port"]
        assert (program, options.params["host"]) == ("fieldcraft", "0.0.0.0")
        assert ports[server] == [{"port": port}]
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/health", "port": port}
