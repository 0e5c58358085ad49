"""The engine that a recipe names, on a model of this process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from fieldcraft.cluster.engines import Engines
from fieldcraft.cluster.session import Session
from fieldcraft.cluster.sources import OnRanks
from fieldcraft.cluster.vllm import Hosted
from fieldcraft.config.making import make_part
from fieldcraft.config.names import LOCAL, Kind, find
from fieldcraft.config.recipe import Recipe
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.engine.home import Home
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.served import ServedEngine
from fieldcraft.engine.vllm.engine import VllmEngine
from fieldcraft.runs.loop import run_async
from fieldcraft.types import Tokenizer, UserError

PARTS = ("generate", "release", "sleep", "separate", "publish")  # of `types.PolicyEngine`
SERVED = ("max_len", "sessions")  # what `ServedEngine` adds


def make_engine(
    recipe: Recipe,
    model: Any,
    tokenizer: Tokenizer,
    threads: int | None,
    home: Home,
    session: Session | None = None,
    source: OnRanks | None = None,
) -> PolicyEngine:
    """Return the engine of a recipe on a model in this process; `threads` are those of a CPU while
    it samples, `home` is of the run, `session` has the processes of a cluster, and `source` the
    weights of a model that is not in this process. Raises UserError for settings that the engine
    does not have, or something that is no engine."""
    choice = recipe.engine
    offered = _offered(recipe, model, tokenizer, threads) | {
        "home": home,
        "source": source,
        "elsewhere": None,
    }
    factory = find(Kind.ENGINE, choice.name)
    if session is not None and session.of("engine"):
        offered["threads"] = 1 if session.device == "cpu" else None
        offered["elsewhere"] = partial(Hosted, session)
        if choice.name == LOCAL:
            factory = home.once("engines", partial(Engines, session, home)).fleet
    engine = make_part(Kind.ENGINE, choice.name, factory, choice.settings, offered, ["name"])
    lacks = [part for part in PARTS if part not in dir(engine)]
    if lacks:
        raise UserError(
            f"the engine '{choice.name}' has no {', '.join(lacks)}: write them as"
            " docs/extending.md shows."
        )
    made: PolicyEngine = engine
    return made


def make_local_engine(
    recipe: Recipe, model: Any, tokenizer: Tokenizer, threads: int | None
) -> LocalEngine:
    """Return an engine in this process, whichever the recipe names: for a model that answers a
    question now and then, or one beside the policy."""
    settings = recipe.engine.settings if recipe.engine.name == LOCAL else {}
    offered = _offered(recipe, model, tokenizer, threads)
    engine: LocalEngine = make_part(Kind.ENGINE, LOCAL, LocalEngine, settings, offered, ["name"])
    return engine


def _offered(
    recipe: Recipe, model: Any, tokenizer: Tokenizer, threads: int | None
) -> dict[str, Any]:
    return {
        "model": model,
        "tokenizer": tokenizer,
        "max_rows": recipe.max_rows,
        "threads": threads,
        "dtype": recipe.policy_dtype,
    }


def make_served_engine(
    recipe: Recipe, model: Any, tokenizer: Tokenizer, threads: int | None, home: Home
) -> ServedEngine:
    """Return the engine of a recipe, for a served agent. Raises UserError as `make_engine` does,
    and for one that does not tell its tokens."""
    engine: Any = make_engine(recipe, model, tokenizer, threads, home)
    lacks = [part for part in SERVED if part not in dir(engine)]
    if "follow" not in signature(engine.generate).parameters:
        lacks.append("generate(..., follow)")
    if lacks:
        raise UserError(
            f"an agent cannot be served by the engine '{recipe.engine.name}', which has no"
            f" {', '.join(lacks)}: write them as docs/extending.md shows, or say engine=local."
        )
    made: ServedEngine = engine
    return made


def engine_problems(
    recipe: Recipe, model: Any, tokenizer: Tokenizer, draft: Path, notes: list[str]
) -> Iterator[str]:
    """Check that the engine is there; `model` needs no weights. Nothing is started, but servers
    that run already must answer. `draft` is a folder for what is written meanwhile."""
    engine = make_engine(recipe, model, tokenizer, 1, Home(draft))
    if isinstance(engine, VllmEngine):
        run_async(engine.check())
    notes.append(recipe.engine.name)
    yield from ()
