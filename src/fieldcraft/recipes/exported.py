"""Settings of an exported agent beside its weights: `fieldcraft.json`, in the same folder.

It holds the keys of a recipe that a policy acts under, all of them resolved, `dtype`, in which it
was trained, `index`, the absolute path of its search index, which is not copied, and `met_tools`:
whether its training showed it a tool. Whoever opens
the folder acts under these keys: `ask`, `eval` and `fieldcraft.load` as they are, a recipe whose
`model` it is where the recipe itself says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldcraft.config.environment import of_others
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.recipes.asks import asks_of
from fieldcraft.recipes.consent import remember, require_consent, require_consent_to_links
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import Damaged, read_json
from fieldcraft.records.remedies import put_aside
from fieldcraft.types import UserError

FILE = "fieldcraft.json"
MET_TOOLS = "met_tools"
PROMPT = ("dialect", "instruction", "system", "template")
# What an agent acts under, and so hands on to a run that trains it.
HANDED_ON = (*PROMPT, "environment", "tools", "search", "budget", "max_rows", "correct")


def write_agent(folder: Path, recipe: Recipe, index: Path | None, *, met_tools: bool) -> None:
    """Write what the agent of a recipe acts under into the folder of its weights, and whether it
    was trained with tools."""
    place = None if index is None else str(index.absolute())
    kept = {"recipe": recipe.recipe, "dtype": recipe.policy_dtype, **handed_on(recipe)}
    written = {**kept, "index": place, MET_TOOLS: met_tools}
    write_json(folder / FILE, written)
    remember(folder / FILE, written)


def handed_on(recipe: Recipe) -> dict[str, Any]:
    """Return the keys that an agent of this recipe acts under, as plain JSON values."""
    return {key: value for key, value in dump_recipe(recipe).items() if key in HANDED_ON}


def read_agent(folder: Path) -> tuple[dict[str, Any], Path | None] | None:
    """Return the recipe of an exported agent, without stages, and the folder of its index; None
    where a folder holds weights alone.

    Raises UserError for a file that `write_agent` did not write, and ConsentNeeded for what it asks
    for that the user has not allowed.
    """
    keys = _read(folder)
    if keys is None:
        return None
    require_consent(folder / FILE, keys)
    require_consent_to_links(folder, keys)
    index = keys.pop("index")
    keys.pop(MET_TOOLS, None)
    return {**keys, "stages": {}}, None if index is None else Path(index)


def exported_met_tools(folder: Path) -> bool:
    """Return whether the training of an exported model showed it a tool; False where a folder holds
    weights alone. Raises UserError as `read_agent` does."""
    keys = _read(folder)
    return keys is not None and bool(keys.get(MET_TOOLS))


def _read(folder: Path) -> dict[str, Any] | None:
    file = folder / FILE
    if not file.exists():
        return None
    try:
        keys: dict[str, Any] = read_json(file, dict[str, Any], "export the agent again")
    except Damaged as error:
        raise UserError(_no_agent(file)) from error
    if {"index", *HANDED_ON} - keys.keys():
        raise UserError(_no_agent(file))
    return keys


def _no_agent(file: Path) -> str:
    return (
        f"{file} is not what 'fieldcraft export' writes: export the agent again, or"
        f" {put_aside(file)} and say yourself how the model is to act."
    )


def filled_from_model(data: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a recipe file. Where its `model` is an exported agent, the keys that
    the recipe leaves out are those that the agent acts under.

    Its prompt is meant for its dialect, so a recipe with another one takes none of it. What is
    searched is the recipe's own business: only how many passages a search returns is taken.

    Raises UserError as `read_agent` does; of what is not taken nothing needs consent.
    """
    model = data.get("model")
    agent = _read(Path(model)) if isinstance(model, str | Path) else None
    if agent is None:
        return data
    if data.get("dialect") is None:  # a recipe that names none takes that of the agent
        data = {key: value for key, value in data.items() if key != "dialect"}
    same_dialect = data.get("dialect", agent["dialect"]) == agent["dialect"]
    tools = () if of_others(data.get("environment")) else ("tools",)
    whole = (*tools, "max_rows", *(PROMPT if same_dialect else ()))
    sections = {"search": {"topk": agent["search"]["topk"]}, "budget": agent["budget"]}
    acts = () if "tools" in data else ("environment",)
    taken = {key: agent[key] for key in (*acts, *whole) if key not in data}
    file = Path(str(model), FILE)
    require_consent(file, agent, asks_of(taken, file.parent))
    filled = taken | data
    for name, section in sections.items():
        own = data.get(name, {})
        filled[name] = {**section, **own} if isinstance(own, Mapping) else own
    return filled
