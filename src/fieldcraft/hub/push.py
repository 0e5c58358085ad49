"""An exported model, sent to a hub: weights, tokenizer, card, and what the agent acts under."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from fieldcraft.config.hub_names import HubModel, model_named
from fieldcraft.hub.client import asking, hub_address
from fieldcraft.records.reading import MAKE_ANEW, read_json
from fieldcraft.types import UserError

Visibility = Literal["public", "private"]
_AGENT = "fieldcraft.json"
_OF_THIS_MACHINE = ("index",)  # its keys that name a folder here, which is not sent


def target_of(push: str) -> HubModel:
    """Return the model to write to. Raises UserError for another name than `org/name`, and without
    a token; nothing is asked of the hub."""
    from huggingface_hub import get_token

    target = model_named(push)
    if target is None or target.revision is not None:
        raise UserError(f"--push {push} is no name on the hub: give it as org/name.")
    if get_token() is None:
        raise UserError(
            f"nobody may write to {target} without a token: set HF_TOKEN to one that may, or run"
            " 'hf auth login'."
        )
    return target


def push_folder(folder: Path, target: HubModel, visibility: Visibility) -> str:
    """Send the files of an exported folder as one commit, and return the address of the model.
    `visibility` is that of a model that is new.

    Raises UserError where the hub does not take them.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, errors

    files = sorted(path for path in folder.iterdir() if path.is_file())
    added = [CommitOperationAdd(path.name, _content(path)) for path in files]
    try:
        with asking(target):
            api = HfApi()
            api.create_repo(target.name, private=visibility == "private", exist_ok=True)
            api.create_commit(target.name, added, commit_message="Exported by fieldcraft")
    except UserError as error:
        status = error.__cause__ if isinstance(error.__cause__, errors.HfHubHTTPError) else None
        why = f"answers {status.response.status_code}" if status else "does not take it"
        raise UserError(
            f"{folder} is whole, and is not sent, as {hub_address()} {why}: set HF_TOKEN to a token"
            f" that may write to {target}, and run 'hf upload {target} {folder}'."
        ) from error
    return f"{hub_address()}/{target}"


def _content(path: Path) -> str | bytes:
    """Return the content of a file to be sent: its path or, where it names folders of this machine,
    other bytes."""
    if path.name != _AGENT:
        return str(path)
    found: dict[str, Any] = read_json(path, dict[str, Any], MAKE_ANEW)
    return json.dumps(found | dict.fromkeys(_OF_THIS_MACHINE), indent=1).encode()
