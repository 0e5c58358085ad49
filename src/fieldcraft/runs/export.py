"""Export of a trained model to a standalone folder, with a card."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fieldcraft.config.components import CLUSTER_MODULE
from fieldcraft.config.hub_names import identify_hub_model
from fieldcraft.config.names import import_object
from fieldcraft.config.recipe import Recipe, get_stage_ancestry
from fieldcraft.config.sections import Dtype
from fieldcraft.dialects.base import encode_untrusted, get_bos_ids
from fieldcraft.dialects.chat_template import render_chat
from fieldcraft.engine.model_files import add_eos_token
from fieldcraft.hub.model_conversion import ADAPTER_CONFIG_FILE
from fieldcraft.recipes.exported import (
    read_agent_settings,
    read_trained_with_tools,
    write_agent_settings,
)
from fieldcraft.records.files import atomic_folder, write_text
from fieldcraft.records.metrics import MetricsLog, format_exact_match, list_columns
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.runs.agent import load_agent
from fieldcraft.runs.build import make_prompt_only_tools
from fieldcraft.runs.dialects import load_dialect, require_usable_tokenizer, with_dialect
from fieldcraft.runs.evaluating import ever_trained_with_tools
from fieldcraft.runs.folder import RunFolder, find_model, find_unmerged_checkpoint
from fieldcraft.train.lora import CPU, load_policy
from fieldcraft.train.model import load_model, load_tokenizer, to_torch_dtype
from fieldcraft.train.parity import probe_model
from fieldcraft.train.protocols import ProbeResult
from fieldcraft.train.saving import save_model
from fieldcraft.types import Dialect, ToolCall, UserError
from fieldcraft.version import __version__

CARD_FILE = "README.md"
EXAMPLE_QUESTION = "What is the capital of France?"
_HUB_CACHE_FOLDER = re.compile(r"models--([^/]+?)--([^/]+)")  # in a hub cache


def export(path: Path, out: Path, dtype: Dtype) -> None:
    """Write the model of a run, a stage or a checkpoint to a new standalone checkpoint, with the
    agent settings (see `recipes.exported`) and a model card.

    Raises UserError if there is no model.
    """
    unmerged = find_unmerged_checkpoint(path)
    run, folder = unmerged or find_model(path)
    agent = load_agent(run, folder)
    tokenizer_folder = folder if unmerged is None else unmerged[0].model("start")
    recipe = with_dialect(agent.recipe, tokenizer_folder)
    tokenizer = load_tokenizer(tokenizer_folder)
    model, probe_result = (
        (load_model(folder, CPU, dtype), None) if unmerged is None else _load_full_model(*unmerged)
    )
    model = model.to(to_torch_dtype(dtype))
    is_agent = run is not None or read_agent_settings(folder) is not None
    dialect = load_dialect(recipe, tokenizer_folder) if is_agent else None
    if dialect is None:
        require_usable_tokenizer(tokenizer_folder)
    stage = folder.absolute().parent.name
    trained_with_tools = (
        read_trained_with_tools(folder)
        if run is None
        else ever_trained_with_tools(run.recipe, stage)
    )
    with atomic_folder(out) as draft:
        save_model(draft, model, tokenizer, probe=probe_result)
        if dialect is not None:
            add_eos_token(draft, dialect.turn_end.token_id)
        write_agent_settings(draft, recipe, agent.index, trained_with_tools=trained_with_tools)
        write_model_card(draft, ModelCardData(out.name, recipe, tokenizer, dialect, run, stage))


def _load_full_model(run: RunFolder, folder: Path) -> tuple[Any, ProbeResult]:
    """Return the model of a sharded checkpoint or of an adapter, merged, and the probe result of
    the original policy. The base weights of an adapter are rounded as during training."""
    start, lora, dtype = run.model("start"), run.recipe.lora, run.recipe.dtype
    if (folder / ADAPTER_CONFIG_FILE).exists():
        model, adapter = load_policy(start, dtype, lora, adapter=folder)
    else:
        load_sharded_policy = import_object(f"{CLUSTER_MODULE}:load_sharded_policy")
        model, adapter = load_sharded_policy(folder, start, dtype, lora)
    probe_result = probe_model(model.float())  # which represents both
    return model if adapter is None else adapter.merge(), probe_result


# -- model card --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelCardData:
    """Data of a card. `run` is None for a checkpoint without a run, and `dialect` for a checkpoint
    without agent settings."""

    name: str  # of the folder
    recipe: Recipe
    tokenizer: Any  # of transformers
    dialect: Dialect | None
    run: RunFolder | None
    stage: str  # of the run


def write_model_card(folder: Path, card_data: ModelCardData) -> None:
    """Write README.md to a folder of weights."""
    environment = Environment(
        loader=PackageLoader("fieldcraft.evaluation"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = environment.get_template("model_card.md.j2").render(_make_values(card_data))
    write_text(folder / CARD_FILE, [re.sub(r"\n{3,}", "\n\n", page)])


def _make_values(card_data: ModelCardData) -> dict[str, Any]:
    recipe, run = card_data.recipe, card_data.run
    stages = get_stage_ancestry(recipe, card_data.stage) if run else []
    schemas = _make_schemas(recipe) if card_data.dialect else []
    base, origin = _describe_origin(card_data)
    return {
        "name": card_data.name,
        "folder": card_data.name,
        "question": EXAMPLE_QUESTION,
        "version": __version__,
        "recipe": recipe.name,
        "seed": recipe.seed,
        "base": base,
        "origin": origin,
        "stages": list(_make_stage_rows(run, stages)) if run else [],
        "columns": [column for _, column in list_columns("card", terminal=True)],
        "rows": list(_make_evaluation_rows(run, stages)) if run else [],
        "acts": _describe_acting(card_data.dialect, schemas) if card_data.dialect else None,
        "code": _make_literals(card_data, schemas),
    }


def _make_schemas(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the schemas of the tools, if available; an agent can be exported without them."""
    try:
        return [tool.schema for tool in make_prompt_only_tools(recipe)]
    except UserError:
        return []


def _describe_origin(card_data: ModelCardData) -> tuple[str | None, str]:
    """Return the name of the first model on the hub, if its path contains it, and a sentence about
    it."""
    if card_data.run is None:
        return None, "The model that it was trained from is unknown."
    model = card_data.recipe.model
    if model is None:
        return None, "It was trained from a randomly initialised model."
    if (copied := identify_hub_model(model)) is not None:
        return copied.name, f"It was trained from {copied.name}, at the commit {copied.revision}."
    if found := _HUB_CACHE_FOLDER.search(str(model.resolve())):
        name = f"{found[1]}/{found[2]}"
        return name, f"It was trained from {name}."
    return None, f"It was trained from the model in a folder called `{model.name}`."


# -- run in the model card ---------------------------------------------------------------------


def _make_stage_rows(run: RunFolder, names: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        stage = run.recipe.stages[name]
        changed = stage.model_dump(mode="json", exclude_defaults=True, exclude={"type", "steps"})
        settings = ", ".join(
            f"{k}: {json.dumps(v, ensure_ascii=False)}" for k, v in changed.items()
        )
        steps = len(MetricsLog(run.stage(name).metrics).read_rows())
        cell = f"`{settings}`" if settings else ""
        yield {"name": name, "type": stage.type, "steps": steps, "settings": cell}


def _make_evaluation_rows(run: RunFolder, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the evaluations of the first model and of every stage in the lineage of this one."""
    for name in run.evaluations():
        if name not in ("base", *names):
            continue
        summary = run.evaluation(name).read_summary()
        yield {
            "name": name,
            "n": str(summary["n"]),
            "em": format_exact_match(summary),
            "others": [
                metric.format_cell(column, summary)
                for metric, column in list_columns("card", terminal=True)
            ],
        }


# -- agent format in the model card ------------------------------------------------------------


def _describe_acting(dialect: Dialect, schemas: list[dict[str, Any]]) -> dict[str, str]:
    """Return the texts of the card about turns, calls and observations."""
    names = [schema["function"]["name"] for schema in schemas]
    stops = [f"with `{stop}`" for stop in dialect.stop_strings]
    opening, _, closing = dialect.render_observation("\0").partition("\0")
    return {
        "dialect": dialect.name,
        "tools": ", ".join(f"`{name}`" for name in names) or "none",
        "ends": " or ".join([*stops, "with the token that ends a sequence"]),
        "call": _render_example_call(dialect, schemas),
        "opening": json.dumps(opening),
        "closing": json.dumps(closing),
    }


def _render_example_call(dialect: Dialect, schemas: list[dict[str, Any]]) -> str:
    """Return an example call of the first tool that the dialect can render, or ""."""
    for schema in schemas:
        function = schema["function"]
        arguments = dict.fromkeys(function["parameters"].get("required", ()), "...")
        try:
            return dialect.render_call(ToolCall(function["name"], arguments))
        except UserError:
            continue
    return ""


def _make_literals(card_data: ModelCardData, schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the literals in the card's example programs."""
    before, after = _split_prompt(card_data, schemas)
    stop_strings = list(card_data.dialect.stop_strings) if card_data.dialect else []
    stops = json.dumps(stop_strings) if stop_strings else ""
    return {
        # AutoTokenizer may use the architecture's default class, which tokenizes differently
        "loader": "PreTrainedTokenizerFast" if card_data.tokenizer.is_fast else "AutoTokenizer",
        "folder": json.dumps(card_data.name),
        "question": json.dumps(EXAMPLE_QUESTION),
        "before": json.dumps(before, ensure_ascii=False),
        "after": json.dumps(after, ensure_ascii=False),
        "tokens": card_data.recipe.budget.max_turn_tokens,
        "stop_strings": f"\n    stop_strings={stops},\n    tokenizer=tokenizer," if stops else "",
        "stop": f"\n    stop={stops}," if stops else "",
    }


def _split_prompt(card_data: ModelCardData, schemas: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the prompt before and after a question, with the beginning-of-sequence token. The
    three parts are encoded separately, as in training."""
    tokenizer = card_data.tokenizer
    if card_data.dialect is not None:
        question_ids = encode_untrusted(tokenizer, EXAMPLE_QUESTION)
        ids = card_data.dialect.encode_prompt(EXAMPLE_QUESTION, schemas)
        positions = range(len(ids) - len(question_ids) + 1)
        start = max(i for i in positions if ids[i : i + len(question_ids)] == question_ids)
        decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
        return decode(ids[:start]), decode(ids[start + len(question_ids) :])
    if tokenizer.chat_template is None:
        return tokenizer.decode(list(get_bos_ids(tokenizer))), "\n"
    messages = [{"role": "user", "content": EXAMPLE_QUESTION}]
    with raise_read_errors("the model's chat template", "correct its chat_template.jinja"):
        text = render_chat(tokenizer, messages, add_generation_prompt=True)
    before, _, after = text.partition(EXAMPLE_QUESTION)
    return before, after
