"""Settings of an exported agent, stored with its weights in `fieldcraft.json`.

The file holds the resolved recipe keys that determine how the policy acts, `dtype`, in which it was
trained, `index`, the absolute path of its search index, which is not copied, and `met_tools`:
whether it was trained with tools. `ask`, `eval` and `fieldcraft.load` use these keys unchanged; a
recipe whose `model` is the folder uses them as defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldcraft.config.choices import is_external_environment, list_unread_keys
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.config.renamed_keys import builtin_added_keys, translate_stored
from fieldcraft.recipes.consent import record_own_consent, require_consent, require_consent_to_links
from fieldcraft.recipes.permissions import find_permission_requests
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import DamagedFileError, advise_renaming, read_json
from fieldcraft.types import UserError

AGENT_FILE = "fieldcraft.json"
TRAINED_WITH_TOOLS_KEY = "met_tools"
PROMPT_KEYS = ("dialect", "instruction", "system_prompt", "chat_template_kwargs")
# Keys that determine how an agent acts, and that it passes on to a run that trains it.
AGENT_KEYS = (
    *PROMPT_KEYS,
    "environment",
    "tools",
    "search",
    "budget",
    "max_num_seqs",
    "verdict_reward",
)


def write_agent_settings(
    folder: Path, recipe: Recipe, index: Path | None, *, trained_with_tools: bool
) -> None:
    """Write the agent settings of a recipe to the folder of its weights, and whether it was trained
    with tools."""
    index_path = None if index is None else str(index.absolute())
    settings = {"name": recipe.name, "dtype": recipe.policy_dtype, **get_agent_settings(recipe)}
    contents = {**settings, "index": index_path, TRAINED_WITH_TOOLS_KEY: trained_with_tools}
    write_json(folder / AGENT_FILE, contents)
    record_own_consent(folder / AGENT_FILE, contents)


def get_agent_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the keys that determine how an agent of this recipe acts, as plain JSON values."""
    return {key: value for key, value in dump_recipe(recipe).items() if key in AGENT_KEYS}


def read_agent_settings(folder: Path) -> tuple[dict[str, Any], Path | None] | None:
    """Return the recipe of an exported agent, without stages, and the folder of its index, or None
    if a folder contains only weights.

    Raises UserError for a file that `write_agent_settings` did not write, and ConsentRequiredError
    for requests in it that the user has not allowed.
    """
    stored = _read_agent_file(folder)
    if stored is None:
        return None
    require_consent(folder / AGENT_FILE, stored)
    require_consent_to_links(folder, stored)
    keys = translate_stored(stored, builtin_added_keys)
    index = keys.pop("index")
    keys.pop(TRAINED_WITH_TOOLS_KEY, None)
    return {**keys, "stages": {}}, None if index is None else Path(index)


def read_trained_with_tools(folder: Path) -> bool:
    """Return whether an exported model was trained with tools; False if a folder contains only
    weights. Raises UserError as `read_agent_settings` does."""
    stored = _read_agent_file(folder)
    return stored is not None and bool(stored.get(TRAINED_WITH_TOOLS_KEY))


def _read_agent_file(folder: Path) -> dict[str, Any] | None:
    """Return what the file of an agent holds, which may have former keys; consent is to exactly
    that."""
    file = folder / AGENT_FILE
    if not file.exists():
        return None
    try:
        stored: dict[str, Any] = read_json(file, dict[str, Any], "export the agent again")
    except DamagedFileError as error:
        raise UserError(_describe_invalid_agent(file)) from error
    if {"index", *AGENT_KEYS} - translate_stored(stored, builtin_added_keys).keys():
        raise UserError(_describe_invalid_agent(file))
    return stored


def _describe_invalid_agent(file: Path) -> str:
    return (
        f"{file} was not written by 'fieldcraft export': export the agent again, or"
        f" {advise_renaming(file)} and set the agent's keys yourself."
    )


def fill_from_model_folder(data: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a recipe file. If its `model` is an exported agent, the keys that the
    recipe leaves out are taken from the agent's settings.

    The agent's prompt matches its dialect, so a recipe with another dialect does not inherit it.
    Search settings are not inherited either, except for the number of passages per search.

    Raises UserError as `read_agent_settings` does; only inherited keys need consent.
    """
    model = data.get("model")
    stored = _read_agent_file(Path(model)) if isinstance(model, str | Path) else None
    if stored is None:
        return data
    agent = translate_stored(stored, builtin_added_keys)
    if data.get("dialect") is None:  # a recipe without a dialect inherits the agent's
        data = {key: value for key, value in data.items() if key != "dialect"}
    same_dialect = data.get("dialect", agent["dialect"]) == agent["dialect"]
    tools = () if is_external_environment(data.get("environment")) else ("tools",)
    copied = (*tools, "max_num_seqs", *(PROMPT_KEYS if same_dialect else ()))
    sections = {"search": {"top_k": agent["search"]["top_k"]}, "budget": agent["budget"]}
    environment = () if "tools" in data else ("environment",)
    inherited = {key: agent[key] for key in (*environment, *copied) if key not in data}
    file = Path(str(model), AGENT_FILE)
    require_consent(file, stored, find_permission_requests(inherited, file.parent))
    unread = list_unread_keys((inherited | data).get("environment"))
    filled = {key: value for key, value in inherited.items() if key not in unread} | data
    for name, section in sections.items():
        own = data.get(name, {})
        read = {key: value for key, value in section.items() if f"{name}.{key}" not in unread}
        filled[name] = {**read, **own} if isinstance(own, Mapping) else own
    return filled
