"""Data sets on the hub, converted to JSON lines files.

The rows are streamed from the hub with the library datasets, which executes no repository code, and
written once per commit, configuration and split.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from fieldcraft.config.hub_names import (
    HubDataset,
    HubModel,
    get_dataset_file,
    get_hub_cache,
    parse_hub_dataset,
)
from fieldcraft.config.names import get_first_line
from fieldcraft.hub.client import HubUnreachableError, raise_hub_errors
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.records.locks import lock_shared_file
from fieldcraft.terminal.console import print_line
from fieldcraft.types import UserError

_MAX_LISTED_NAMES = 8  # names of configurations or splits in a message
_MEDIA_FEATURES = ("Image", "Audio", "Video", "Pdf")  # columns that text readers do not support


def resolve_data_file(path: Path) -> Path:
    """Return the file with the rows that a `hub:...` path refers to, and any other path unchanged.
    Raises UserError like `fetch_dataset`, and for a pipe or a device, which is not read twice."""
    if rows := parse_hub_dataset(path):
        return fetch_dataset(rows)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(
            f"{path} is a pipe or a device, and it would be read more than once: save it to a file"
            " and give that."
        )
    return path


def fetch_dataset(rows: HubDataset) -> Path:
    """Return the file with rows of the hub; it is written if it is not cached.

    Raises UserError if they cannot be fetched, or if the configuration or split is ambiguous.
    """
    pinned = rows._replace(revision=_resolve_commit(rows))
    if pinned.is_fully_specified and get_dataset_file(pinned).exists():
        return get_dataset_file(pinned)
    resolved = _resolve_names(pinned)
    file = get_dataset_file(resolved)
    with lock_shared_file(file):
        if not file.exists():
            _write_rows(resolved, file)
    return file


def _resolve_commit(rows: HubDataset) -> str:
    """Return the current commit of the revision, or the commit when the hub was last queried."""
    from huggingface_hub import HfApi

    if rows.revision is not None and HubModel(rows.name, rows.revision).is_pinned:
        return rows.revision
    with raise_hub_errors(rows):
        resolved = HfApi().resolve_revision(
            rows.name, repo_type="dataset", revision=rows.revision, cache_dir=get_hub_cache()
        )
    return str(resolved.resolved)


def _resolve_names(rows: HubDataset) -> HubDataset:
    """Return the rows with their configuration and split, by default the only ones. Without a
    network, cached ones are used."""
    library = _import_datasets(rows)
    try:
        _require_access(rows)
        configs = _list_configs(library, rows)
        config = _choose_name(rows, "configuration", configs, rows.config, "/")
        resolved = rows._replace(config=config)
        splits = _list_splits(library, resolved)
        return resolved._replace(split=_choose_name(resolved, "split", splits, rows.split, ":"))
    except HubUnreachableError:
        cache_folder = get_dataset_file(rows._replace(config="*", split="*")).parents[2]
        paths = cache_folder.glob(f"{rows.config or '*'}/{rows.split or '*'}/*.jsonl")
        cached = [rows._replace(config=p.parts[-3], split=p.parts[-2]) for p in paths]
        if len(cached) != 1:
            raise
        return cached[0]


def _require_access(rows: HubDataset) -> None:
    """Raise UserError if the hub does not respond or denies access. The library datasets would
    retry for minutes, and its errors contain too little to name the remedy."""
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url

    with raise_hub_errors(rows):
        found = HfApi().dataset_info(rows.name, revision=rows.revision)
        for file in (found.siblings or [])[:1]:
            name, commit = file.rfilename, rows.revision
            get_hf_file_metadata(hf_hub_url(rows.name, name, repo_type="dataset", revision=commit))


def _list_configs(library: ModuleType, rows: HubDataset) -> list[str]:
    with _raise_dataset_errors(rows):
        return list(library.get_dataset_config_names(rows.name, revision=rows.revision))


def _list_splits(library: ModuleType, rows: HubDataset) -> list[str]:
    with _raise_dataset_errors(rows):
        return list(library.get_dataset_split_names(rows.name, rows.config, revision=rows.revision))


def _choose_name(
    rows: HubDataset, kind: str, names: list[str], requested: str | None, separator: str
) -> str:
    """Return the requested name, or the only one. Raises UserError for an unknown name, and if the
    choice is ambiguous."""
    if requested in names or (requested is None and len(names) == 1):
        return requested or names[0]
    if requested is not None:
        raise UserError(f"{rows.name} has no {kind} '{requested}': it has {_format_names(names)}.")
    example = (
        f"{rows._replace(revision=None, split=None)}{separator}{names[0] if names else 'NAME'}"
    )
    raise UserError(
        f"{rows.name} has the {kind}s {_format_names(names)}: give one of them, as in {example}."
    )


def _format_names(names: list[str]) -> str:
    rest = f" and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
    return ", ".join(names[:_MAX_LISTED_NAMES]) + rest if names else "none"


def _write_rows(rows: HubDataset, file: Path) -> None:
    library = _import_datasets(rows)
    print_line(f"Downloading {rows} to {file} (only once) ...", file=sys.stderr)
    with _raise_dataset_errors(rows):
        dataset = library.load_dataset(
            rows.name, rows.config, split=rows.split, revision=rows.revision, streaming=True
        )
        features = dataset.features or {}
        media = [name for name, kind in features.items() if type(kind).__name__ in _MEDIA_FEATURES]
        texts = dataset.remove_columns(media) if media else dataset
        write_json_lines(file, (_to_json(row) for row in texts))


def _to_json(value: Any) -> Any:
    """Convert a value for JSON: dates to ISO format, bytes to base64. A number that is not finite,
    the missing value of pandas, becomes None."""
    match value:
        case Mapping():
            return {str(key): _to_json(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_to_json(inner) for inner in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int() | str():
            return value
    return json.loads(json.dumps(value, default=str))


@contextmanager
def _raise_dataset_errors(rows: HubDataset) -> Iterator[None]:
    """Convert exceptions of the library datasets inside the block. Raises UserError."""
    from datasets import exceptions

    with raise_hub_errors(rows):
        try:
            yield
        except (ConnectionError, UserError):
            raise
        except (FileNotFoundError, exceptions.DatasetsError) as error:
            raise UserError(_describe_no_data(rows, error)) from error
        except (ValueError, RuntimeError) as error:
            raise UserError(_describe_unreadable(rows, error)) from error


def _describe_no_data(rows: HubDataset, error: Exception) -> str:
    return (
        f"{rows} has no data files that the library datasets supports"
        f" ({get_first_line(error)}): download the required file and give its path."
    )


def _describe_unreadable(rows: HubDataset, error: Exception) -> str:
    return f"{rows} cannot be read ({get_first_line(error)}): correct the name, or give a file."


def _import_datasets(rows: HubDataset) -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{rows} needs the package datasets: pip install 'fieldcraft[datasets]', or download"
            " one of its files and give its path."
        ) from error
    datasets.disable_progress_bars()
    return datasets
