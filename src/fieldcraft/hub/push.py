"""Upload of an exported model to a hub: weights, tokenizer, card, and agent settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from fieldcraft.config.hub_names import HubModel, parse_hub_model
from fieldcraft.hub.client import HubUnreachableError, get_hub_address, raise_hub_errors
from fieldcraft.records.reading import RERUN_ADVICE, read_json
from fieldcraft.types import UserError

Visibility = Literal["public", "private"]
_AGENT_FILE = "fieldcraft.json"
_LOCAL_KEYS = ("index",)  # keys that refer to a local folder, which is not uploaded


def parse_push_target(push: str) -> HubModel:
    """Return the target model. Raises UserError for a name other than `org/name`, and without a
    token; no request is sent."""
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
    """Upload the files of an exported folder as one commit, and return the address of the model.
    `visibility` applies to a new model.

    Raises UserError with the cause if the upload fails.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    files = sorted(path for path in folder.iterdir() if path.is_file())
    uploads = {path.name: _read_upload(path) for path in files}
    try:
        with raise_hub_errors(target):
            additions = [CommitOperationAdd(name, upload) for name, upload in uploads.items()]
            api = HfApi()
            api.create_repo(target.name, private=visibility == "private", exist_ok=True)
            api.create_commit(target.name, additions, commit_message="Exported by fieldcraft")
    except UserError as error:
        option = " --private" if visibility == "private" else ""
        cause = _describe_failure(error, target)
        raise UserError(
            f"{folder} is complete but was not uploaded, because {cause},"
            f" and run 'hf upload {target} {folder}{option}'."
        ) from error
    return f"{get_hub_address()}/{target}"


def _describe_failure(error: UserError, target: HubModel) -> str:
    """Return the cause of an error of `raise_hub_errors` during an upload, and the remedy."""
    from huggingface_hub import constants, errors

    if isinstance(error, HubUnreachableError):
        if constants.HF_HUB_OFFLINE:
            return "HF_HUB_OFFLINE prevents it: unset it"
        return (
            f"{get_hub_address()} cannot be reached: connect to the network or correct HF_ENDPOINT"
        )
    match error.__cause__:
        case errors.HfHubHTTPError(response=response):
            answer = f"{get_hub_address()} answers {response.status_code}"
            if response.is_server_error:
                return f"{answer}: wait a little"
            return f"{answer}: set HF_TOKEN to a token that may write to {target}"
        case OSError(filename=str(file), strerror=reason):
            return f"{file} cannot be read ({reason}): make it readable"
    return str(error).rstrip(".")


def _read_upload(path: Path) -> str | bytes:
    """Return the content of a file to upload: its path, or modified bytes if it refers to local
    folders."""
    if path.name != _AGENT_FILE:
        return str(path)
    found: dict[str, Any] = read_json(path, dict[str, Any], RERUN_ADVICE)
    return json.dumps(found | dict.fromkeys(_LOCAL_KEYS), indent=1).encode()
