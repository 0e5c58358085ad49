"""The card of an exported model: what it is, its stages and figures, and how to run it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fieldcraft.config.hub_names import model_in
from fieldcraft.config.lineage import lineage
from fieldcraft.config.recipe import Recipe
from fieldcraft.dialects.base import beginning, encode_plain
from fieldcraft.dialects.templates import render_chat
from fieldcraft.records.files import write_text
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.runs.build import closed_tools
from fieldcraft.runs.folder import RunFolder
from fieldcraft.types import Action, Dialect, UserError
from fieldcraft.version import __version__

FILE = "README.md"
QUESTION = "What is the capital of France?"
_HUB = re.compile(r"models--([^/]+?)--([^/]+)")  # of a cache of the hub


@dataclass(frozen=True, slots=True)
class Exported:
    """Subject of a card. `run` is None for a checkpoint that no run here has made, and `dialect`
    for one of which nothing says how it acts."""

    name: str  # of the folder
    recipe: Recipe
    tokenizer: Any  # of transformers
    dialect: Dialect | None
    run: RunFolder | None
    stage: str  # of the run


def write_card(folder: Path, exported: Exported) -> None:
    """Write README.md into a folder of weights."""
    environment = Environment(
        loader=PackageLoader("fieldcraft.evals"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = environment.get_template("model_card.md.j2").render(_contents(exported))
    write_text(folder / FILE, [re.sub(r"\n{3,}", "\n\n", page)])


def _contents(exported: Exported) -> dict[str, Any]:
    recipe, run = exported.recipe, exported.run
    went_through = lineage(recipe, exported.stage) if run else []
    schemas = _schemas(recipe) if exported.dialect else []
    base, origin = _origin(exported)
    return {
        "name": exported.name,
        "folder": exported.name,
        "question": QUESTION,
        "version": __version__,
        "recipe": recipe.recipe,
        "seed": recipe.seed,
        "base": base,
        "origin": origin,
        "stages": list(_stages(run, went_through)) if run else [],
        "rows": list(_rows(run, went_through)) if run else [],
        "acts": _acting(exported.dialect, schemas) if exported.dialect else None,
        "code": _code(exported, schemas),
    }


def _schemas(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the schemas of the tools, if they are here; an agent can be exported without them."""
    try:
        return [tool.schema for tool in closed_tools(recipe)]
    except UserError:
        return []


def _origin(exported: Exported) -> tuple[str | None, str]:
    """Return the name of the first model on the hub, if its path says it, and a sentence about
    it."""
    if exported.run is None:
        return None, "Which model it began as is not known here."
    model = exported.recipe.model
    if model is None:
        return None, "Its first model was made from nothing."
    if (copied := model_in(model)) is not None:
        return copied.name, f"It began as {copied.name}, at the commit {copied.revision}."
    if found := _HUB.search(str(model.resolve())):
        name = f"{found[1]}/{found[2]}"
        return name, f"It began as {name}."
    return None, f"It began as the model in a folder called `{model.name}`."


# -- the run -----------------------------------------------------------------------------------


def _stages(run: RunFolder, names: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        stage = run.recipe.stages[name]
        said = stage.model_dump(mode="json", exclude_defaults=True, exclude={"type", "steps"})
        settings = ", ".join(f"{k}: {json.dumps(v, ensure_ascii=False)}" for k, v in said.items())
        steps = len(MetricsLog(run.stage(name).metrics).rows())
        shown = f"`{settings}`" if settings else ""
        yield {"name": name, "type": stage.type, "steps": steps, "settings": shown}


def _rows(run: RunFolder, names: list[str]) -> Iterator[dict[str, str]]:
    """Yield the evaluations of the first model and of every stage on the way to this one."""
    for name in run.evaluations():
        if name not in ("base", *names):
            continue
        found = run.evaluation(name).read_summary()
        em, interval = found["em"], found["em_ci95"] or (0.0, 0.0)
        yield {
            "name": name,
            "n": str(found["n"]),
            "em": "not gradable" if em is None else "{:.3f} [{:.3f}, {:.3f}]".format(em, *interval),
            "f1": "" if found["f1"] is None else f"{found['f1']:.3f}",
            "calls": f"{found['calls_mean']:.2f}",
        }


# -- how it acts -------------------------------------------------------------------------------


def _acting(dialect: Dialect, schemas: list[dict[str, Any]]) -> dict[str, str]:
    """Return the words of the card about turns, calls and observations."""
    names = [schema["function"]["name"] for schema in schemas]
    stops = [f"with `{stop}`" for stop in dialect.stop]
    opening, _, closing = dialect.write_observation("\0").partition("\0")
    return {
        "dialect": dialect.name,
        "tools": ", ".join(f"`{name}`" for name in names) or "none",
        "ends": " or ".join([*stops, "with the token that ends a sequence"]),
        "call": _call(dialect, schemas),
        "opening": json.dumps(opening),
        "closing": json.dumps(closing),
    }


def _call(dialect: Dialect, schemas: list[dict[str, Any]]) -> str:
    """Return a call of the first tool that the dialect can write, "" without one."""
    for schema in schemas:
        function = schema["function"]
        arguments = dict.fromkeys(function["parameters"].get("required", ()), "...")
        try:
            return dialect.write_action(Action(function["name"], arguments))
        except UserError:
            continue
    return ""


def _code(exported: Exported, schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the literals of the programs of the card."""
    before, after = _frame(exported, schemas)
    stops = list(exported.dialect.stop) if exported.dialect else []
    return {
        # AutoTokenizer may take the usual one of the architecture, which splits texts otherwise
        "loader": "PreTrainedTokenizerFast" if exported.tokenizer.is_fast else "AutoTokenizer",
        "folder": json.dumps(exported.name),
        "question": json.dumps(QUESTION),
        "before": json.dumps(before, ensure_ascii=False),
        "after": json.dumps(after, ensure_ascii=False),
        "tokens": exported.recipe.budget.turn_tokens,
        "stop_strings": f"\n    stop_strings={stops!r},\n    tokenizer=tokenizer," if stops else "",
        "stop": f"\n    stop={stops!r}," if stops else "",
    }


def _frame(exported: Exported, schemas: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the prompt before and behind a question, with the token that begins a sequence. The
    three are encoded apart, as in training."""
    tokenizer = exported.tokenizer
    if exported.dialect is not None:
        asked = encode_plain(tokenizer, QUESTION)
        ids = exported.dialect.prompt(QUESTION, schemas)
        places = range(len(ids) - len(asked) + 1)
        at = max(i for i in places if ids[i : i + len(asked)] == asked)
        text_of = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
        return text_of(ids[:at]), text_of(ids[at + len(asked) :])
    if tokenizer.chat_template is None:
        return tokenizer.decode(list(beginning(tokenizer))), "\n"
    asked_of = [{"role": "user", "content": QUESTION}]
    text = render_chat(tokenizer, asked_of, add_generation_prompt=True)
    before, _, after = text.partition(QUESTION)
    return before, after
