"""Factory of the recipe's engine for a model in this process."""

from __future__ import annotations

from inspect import signature
from typing import Any

from fieldcraft.config.components import LOCAL_ENGINE, ComponentKind
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import resolve
from fieldcraft.config.recipe import Recipe
from fieldcraft.engine.base import PolicyEngine, StreamingEngine
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.weights import WeightSource
from fieldcraft.runs.cluster import ClusterBackend
from fieldcraft.types import Tokenizer, UserError

ENGINE_METHODS = (
    "generate",
    "release",
    "sleep",
    "snapshot_weights",
    "update_weights",
)  # methods and attributes of `PolicyEngine`
STREAMING_ATTRIBUTES = ("max_len", "num_sessions")  # additional attributes of `StreamingEngine`


def make_engine(
    recipe: Recipe,
    model: Any,
    tokenizer: Tokenizer,
    threads: int | None,
    resources: RunResources,
    cluster: ClusterBackend | None = None,
    weight_source: WeightSource | None = None,
) -> PolicyEngine:
    """Return the engine of a recipe for a model in this process. `threads` is the number of CPU
    threads for sampling, `resources` belongs to the run, `cluster` has the processes of a
    cluster, and `weight_source` the weights of a model outside this process. Raises UserError for
    unknown settings, or an object that is not an engine."""
    config = recipe.engine
    offered = _engine_arguments(recipe, model, tokenizer, threads) | {
        "resources": resources,
        "source": weight_source,
        "pool_factory": None,
    }
    factory = resolve(ComponentKind.ENGINE, config.name)
    if cluster is not None:
        factory, placed = cluster.place_engine(config, factory, resources)
        offered |= placed
    engine = instantiate(
        ComponentKind.ENGINE, config.name, factory, config.settings, offered, ["name"]
    )
    missing = [method for method in ENGINE_METHODS if method not in dir(engine)]
    if missing:
        raise UserError(
            f"the engine '{config.name}' has no {', '.join(missing)}: write them as"
            " docs/extending.md shows."
        )
    made: PolicyEngine = engine
    return made


def make_local_engine(
    recipe: Recipe, model: Any, tokenizer: Tokenizer, threads: int | None
) -> LocalEngine:
    """Return an engine in this process, regardless of the recipe's engine: for a model that answers
    only occasional questions, or one used in addition to the policy."""
    settings = recipe.engine.settings if recipe.engine.name == LOCAL_ENGINE else {}
    offered = _engine_arguments(recipe, model, tokenizer, threads)
    engine: LocalEngine = instantiate(
        ComponentKind.ENGINE, LOCAL_ENGINE, LocalEngine, settings, offered, ["name"]
    )
    return engine


def _engine_arguments(
    recipe: Recipe, model: Any, tokenizer: Tokenizer, threads: int | None
) -> dict[str, Any]:
    return {
        "model": model,
        "tokenizer": tokenizer,
        "max_num_seqs": recipe.max_num_seqs,
        "threads": threads,
        "dtype": recipe.policy_dtype,
    }


def make_streaming_engine(
    recipe: Recipe, model: Any, tokenizer: Tokenizer, threads: int | None, resources: RunResources
) -> StreamingEngine:
    """Return the engine of a recipe for a served agent. Raises UserError like `make_engine`, and
    for an engine without token streaming."""
    engine: Any = make_engine(recipe, model, tokenizer, threads, resources)
    missing = [attribute for attribute in STREAMING_ATTRIBUTES if attribute not in dir(engine)]
    if "on_token" not in signature(engine.generate).parameters:
        missing.append("generate(..., on_token)")
    if missing:
        raise UserError(
            f"an agent cannot be served by the engine '{recipe.engine.name}', which has no"
            f" {', '.join(missing)}: write them as docs/extending.md shows, or set engine=local."
        )
    made: StreamingEngine = engine
    return made
