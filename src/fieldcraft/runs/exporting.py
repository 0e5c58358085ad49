"""A trained model as a folder of its own, which others load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.writing import add_end
from fieldcraft.hub.converted import ADAPTER
from fieldcraft.recipes.exported import exported_met_tools, read_agent, write_agent
from fieldcraft.records.files import atomic_folder
from fieldcraft.runs.agent import agent_in
from fieldcraft.runs.dialects import load_dialect, require_any_dialect, with_dialect
from fieldcraft.runs.folder import RunFolder, find_model, find_part
from fieldcraft.runs.model_card import Exported, write_card
from fieldcraft.runs.tool_training import ever_met_tools
from fieldcraft.train.learning import ProbeResult
from fieldcraft.train.model import load_model, load_tokenizer, torch_type
from fieldcraft.train.parity import said_by_model
from fieldcraft.train.saving import save_model
from fieldcraft.train.sharding.policies import CPU, load_policy, read_policy


def export(path: Path, out: Path, dtype: Dtype) -> None:
    """Write the model of a run, a stage or a checkpoint as a checkpoint of its own, which is new,
    and beside it what the agent acts under, see `recipes.exported`, and a model card.

    Raises UserError where there is no model.
    """
    part = find_part(path)
    run, folder = part or find_model(path)
    agent = agent_in(run, folder)
    tokens = folder if part is None else part[0].model("start")
    recipe = with_dialect(agent.recipe, tokens)
    tokenizer = load_tokenizer(tokens)
    model, said = (load_model(folder, CPU, dtype), None) if part is None else _whole(*part)
    model = model.to(torch_type(dtype))
    acts = run is not None or read_agent(folder) is not None
    dialect = load_dialect(recipe, tokens) if acts else None
    if dialect is None:
        require_any_dialect(tokens)
    stage = folder.absolute().parent.name
    met_tools = exported_met_tools(folder) if run is None else ever_met_tools(run.recipe, stage)
    with atomic_folder(out) as draft:
        save_model(draft, model, tokenizer, said=said)
        if dialect is not None:
            add_end(draft, dialect.end.token)
        write_agent(draft, recipe, agent.index, met_tools=met_tools)
        write_card(draft, Exported(out.name, recipe, tokenizer, dialect, run, stage))


def _whole(run: RunFolder, part: Path) -> tuple[Any, ProbeResult]:
    """Return the model of a checkpoint in shards or of an adapter, which is merged, and the record
    of what the policy said before. The weights below an adapter are rounded as they were in
    training."""
    start, lora, dtype = run.model("start"), run.recipe.lora, run.recipe.dtype
    if (part / ADAPTER).exists():
        model, adapter = load_policy(start, dtype, lora, adapter=part)
    else:
        model, adapter = read_policy(part, start, dtype, lora)
    said = said_by_model(model.float())  # which holds both
    return model if adapter is None else adapter.merged(), said
