"""Single files of data sets on the hub, whose rows only their own code would load."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fieldcraft.config.hub_names import HubDataset, get_hub_cache
from fieldcraft.hub.client import raise_hub_errors
from fieldcraft.types import UserError


class RepositoryFile(NamedTuple):
    """A downloaded file, and the commit of its repository."""

    path: Path
    commit: str


def fetch_repository_file(dataset: HubDataset, name: str) -> RepositoryFile:
    """Return a file of a repository; it is downloaded once per commit.

    Raises UserError if the hub does not provide it.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    with raise_hub_errors(dataset):
        try:
            path = hf_hub_download(
                dataset.name,
                name,
                repo_type="dataset",
                revision=dataset.revision,
                cache_dir=get_hub_cache(),
            )
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError as error:
            raise UserError(
                f"{dataset} has no file {name}: download the file that has replaced it and give its"
                " path."
            ) from error
    # .../snapshots/COMMIT/NAME
    return RepositoryFile(Path(path), Path(path).parents[name.count("/")].name)
