"""What an exported agent needs beside its weights: `fieldcraft.json`, in the same folder.

It holds the keys of a recipe that a policy acts under, all of them resolved, `dtype`, in which it
was trained, and `index`, the absolute path of its search index, which is not copied. Whoever opens
the folder acts under these keys: `ask`, `eval` and `fieldcraft.load` as they are, a recipe whose
`model` it is where the recipe itself says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldcraft.config.environment import of_others
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import Damaged, read_json
from fieldcraft.types import UserError

FILE = "fieldcraft.json"
PROMPT = ("dialect", "instruction", "system", "template")
# What an agent acts under, and so hands on to a run that trains it.
HANDED_ON = (*PROMPT, "environment", "tools", "search", "budget", "max_rows", "correct")


def write_agent(folder: Path, recipe: Recipe, index: Path | None) -> None:
    """Write what the agent of a recipe acts under into the folder of its weights."""
    place = None if index is None else str(index.absolute())
    kept = {"recipe": recipe.recipe, "dtype": recipe.policy_dtype, **handed_on(recipe)}
    write_json(folder / FILE, {**kept, "index": place})


def handed_on(recipe: Recipe) -> dict[str, Any]:
    """What an agent of this recipe acts under, as plain JSON values."""
    return {key: value for key, value in dump_recipe(recipe).items() if key in HANDED_ON}


def read_agent(folder: Path) -> tuple[dict[str, Any], Path | None] | None:
    """The recipe of an exported agent, without stages, and the folder of its index; None where a
    folder holds weights alone.

    Raises UserError for a file that `write_agent` did not write.
    """
    file = folder / FILE
    if not file.exists():
        return None
    try:
        keys = read_json(file, dict[str, Any], "export the agent again")
        index = keys.pop("index")
        missing = {*HANDED_ON} - keys.keys()
    except (Damaged, KeyError) as error:
        raise UserError(_no_agent(file)) from error
    if missing:
        raise UserError(_no_agent(file))
    return {**keys, "stages": {}}, None if index is None else Path(index)


def _no_agent(file: Path) -> str:
    return (
        f"{file} is not what 'fieldcraft export' writes: export the agent again, or delete the file"
        " and say yourself how the model is to act."
    )


def filled_from_model(data: dict[str, Any]) -> dict[str, Any]:
    """The contents of a recipe file; where its `model` is an exported agent, what the recipe leaves
    out is what that acts under.

    Its prompt is meant for its dialect, so a recipe with another one takes none of it. What is
    searched is the recipe's own business: only how many passages a search returns is taken.
    """
    model = data.get("model")
    found = read_agent(Path(model)) if isinstance(model, str | Path) else None
    if found is None:
        return data
    agent, _ = found
    same_dialect = data.get("dialect", agent["dialect"]) == agent["dialect"]
    tools = () if of_others(data.get("environment")) else ("tools",)
    whole = (*tools, "max_rows", *(PROMPT if same_dialect else ()))
    sections = {"search": {"topk": agent["search"]["topk"]}, "budget": agent["budget"]}
    acts = () if "tools" in data else ("environment",)
    filled = {key: agent[key] for key in (*acts, *whole)} | data
    for name, section in sections.items():
        own = data.get(name, {})
        filled[name] = {**section, **own} if isinstance(own, Mapping) else own
    return filled
