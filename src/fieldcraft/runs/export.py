"""Export of a trained model to a standalone folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.model_files import add_eos_token
from fieldcraft.extensions.cluster.sharding.policies import CPU, load_policy, load_sharded_policy
from fieldcraft.hub.model_conversion import ADAPTER_CONFIG_FILE
from fieldcraft.recipes.exported import (
    read_agent_settings,
    read_trained_with_tools,
    write_agent_settings,
)
from fieldcraft.records.files import atomic_folder
from fieldcraft.runs.agent import load_agent
from fieldcraft.runs.dialects import load_dialect, require_usable_tokenizer, with_dialect
from fieldcraft.runs.folder import RunFolder, find_model, find_unmerged_checkpoint
from fieldcraft.runs.model_card import ModelCardData, write_model_card
from fieldcraft.runs.tool_training import ever_trained_with_tools
from fieldcraft.train.model import load_model, load_tokenizer, to_torch_dtype
from fieldcraft.train.parity import probe_model
from fieldcraft.train.protocols import ProbeResult
from fieldcraft.train.saving import save_model


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
        model, adapter = load_sharded_policy(folder, start, dtype, lora)
    probe_result = probe_model(model.float())  # which represents both
    return model if adapter is None else adapter.merge(), probe_result
