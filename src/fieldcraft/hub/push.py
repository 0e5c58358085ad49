"""An exported model, sent to a hub: weights, tokenizer, card, and what the agent acts under."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from fieldcraft.config.hub_names import HubModel, parse_hub_model
from fieldcraft.hub.client import get_hub_address, raise_hub_errors
from fieldcraft.records.reading import RERUN_ADVICE, read_json
from fieldcraft.types import UserError

Visibility = Literal["public", "private"]
_AGENT_FILE = "fieldcraft.json"
_LOCAL_KEYS = ("index",)  # its keys that name a folder here, which is not sent


def parse_push_target(push: str) -> HubModel:
    """Return the model to write to. Raises UserError for another name than `org/name`, and without
    a token; nothing is asked of the hub."""
    from huggingface_hub import get_token

    target = parse_hub_model(push)
    if target is None or target.revision is not None:
        raise UserError(f"--push {push} is not a name on the hub: give it as org/name.")
    if get_token() is None:
        raise UserError(
            f"writing to {target} needs a token: set HF_TOKEN to a token with write access, or run"
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
    additions = [CommitOperationAdd(path.name, _read_upload(path)) for path in files]
    try:
        with raise_hub_errors(target):
            api = HfApi()
            api.create_repo(target.name, private=visibility == "private", exist_ok=True)
            api.create_commit(target.name, additions, commit_message="Exported by fieldcraft")
    except UserError as error:
        http_error = error.__cause__ if isinstance(error.__cause__, errors.HfHubHTTPError) else None
        reason = f"answers {http_error.response.status_code}" if http_error else "does not take it"
        raise UserError(
            f"{folder} is whole, and is not sent, as {get_hub_address()} {reason}: set HF_TOKEN to"
            f" a token that may write to {target}, and run 'hf upload {target} {folder}'."
        ) from error
    return f"{get_hub_address()}/{target}"


def _read_upload(path: Path) -> str | bytes:
    """Return the content of a file to be sent: its path or, where it names folders of this machine,
    other bytes."""
    if path.name != _AGENT_FILE:
        return str(path)
    found: dict[str, Any] = read_json(path, dict[str, Any], RERUN_ADVICE)
    return json.dumps(found | dict.fromkeys(_LOCAL_KEYS), indent=1).encode()
