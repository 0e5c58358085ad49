"""Data sets of the hub as files of JSON lines, which everything that reads data reads.

The rows are streamed from the hub by the library datasets, which runs no code of a repository, and
written once for each commit, configuration and split.
"""

from __future__ import annotations

import base64
import datetime
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from filelock import FileLock

from fieldcraft.config.hub_names import HubModel, HubRows, file_of, hub_cache, rows_named
from fieldcraft.config.names import first_line
from fieldcraft.hub.client import HubUnreachable, asking
from fieldcraft.records.files import make_folder
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.terminal.console import say
from fieldcraft.types import UserError

_SHOWN = 8  # names of configurations or splits in a sentence
_MEDIA = ("Image", "Audio", "Video", "Pdf")  # columns that no text reader takes


def local_file(path: Path) -> Path:
    """Return the file of the rows that a path names as `hub:...`, and any other path as it is.
    Raises UserError as `fetch_rows` does."""
    rows = rows_named(path)
    return path if rows is None else fetch_rows(rows)


def fetch_rows(rows: HubRows) -> Path:
    """Return the file of rows of the hub; it is written if the cache does not have it.

    Raises UserError where they cannot be fetched, or where it is open which of several
    configurations or splits is meant.
    """
    pinned = rows._replace(revision=_commit(rows))
    if pinned.is_whole and file_of(pinned).exists():
        return file_of(pinned)
    whole = _completed(pinned)
    file = file_of(whole)
    make_folder(file.parent)
    with FileLock(file.with_name(".lock"), mode=0o600):
        if not file.exists():
            _write(whole, file)
    return file


def _commit(rows: HubRows) -> str:
    """Return the commit that its revision is now, or was when the hub was last asked."""
    from huggingface_hub import HfApi

    if rows.revision is not None and HubModel(rows.name, rows.revision).is_pinned:
        return rows.revision
    with asking(rows):
        found = HfApi().resolve_revision(
            rows.name, repo_type="dataset", revision=rows.revision, cache_dir=hub_cache()
        )
    return str(found.resolved)


def _completed(rows: HubRows) -> HubRows:
    """Return the rows with the configuration and the split that they name, or the only ones.
    Without a network, those that the cache has."""
    library = _datasets(rows)
    try:
        _require_access(rows)
        configs = _configs(library, rows)
        config = _chosen(rows, "configuration", configs, rows.config, "/")
        chosen = rows._replace(config=config)
        splits = _splits(library, chosen)
        return chosen._replace(split=_chosen(chosen, "split", splits, rows.split, ":"))
    except HubUnreachable:
        kept = file_of(rows._replace(config="*", split="*")).parents[2]
        places = kept.glob(f"{rows.config or '*'}/{rows.split or '*'}/*.jsonl")
        found = [rows._replace(config=p.parts[-3], split=p.parts[-2]) for p in places]
        if len(found) != 1:
            raise
        return found[0]


def _require_access(rows: HubRows) -> None:
    """Raise UserError where the hub does not answer, or gives no file. The library datasets would
    ask for minutes, and says of a refusal too little to name the remedy."""
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url

    with asking(rows):
        found = HfApi().dataset_info(rows.name, revision=rows.revision)
        for file in (found.siblings or [])[:1]:
            name, commit = file.rfilename, rows.revision
            get_hf_file_metadata(hf_hub_url(rows.name, name, repo_type="dataset", revision=commit))


def _configs(library: ModuleType, rows: HubRows) -> list[str]:
    with _loading(rows):
        return list(library.get_dataset_config_names(rows.name, revision=rows.revision))


def _splits(library: ModuleType, rows: HubRows) -> list[str]:
    with _loading(rows):
        return list(library.get_dataset_split_names(rows.name, rows.config, revision=rows.revision))


def _chosen(rows: HubRows, kind: str, names: list[str], wish: str | None, sign: str) -> str:
    """Return the name that is wished for, or the only one. Raises UserError for one that is none of
    these, and where several could be meant."""
    if wish in names or (wish is None and len(names) == 1):
        return wish or names[0]
    if wish is not None:
        raise UserError(f"{rows.name} has no {kind} '{wish}': it has {_listed(names)}.")
    example = f"{rows._replace(revision=None, split=None)}{sign}{names[0] if names else 'NAME'}"
    raise UserError(
        f"{rows.name} has the {kind}s {_listed(names)}: give one of them, as in {example}."
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else "none"


def _write(rows: HubRows, file: Path) -> None:
    library = _datasets(rows)
    say(f"{rows} is fetched into {file}, once ...", file=sys.stderr)
    with _loading(rows):
        found = library.load_dataset(
            rows.name, rows.config, split=rows.split, revision=rows.revision, streaming=True
        )
        features = found.features or {}
        media = [name for name, kind in features.items() if type(kind).__name__ in _MEDIA]
        texts = found.remove_columns(media) if media else found
        write_json_lines(file, (_plain(row) for row in texts))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: dates as ISO writes them, bytes in base64."""
    match value:
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case None | bool() | int() | float() | str():
            return value
    return json.loads(json.dumps(value, default=str))


@contextmanager
def _loading(rows: HubRows) -> Iterator[None]:
    """Use the library datasets inside the block. Raises UserError for what it cannot give."""
    from datasets import exceptions

    with asking(rows):
        try:
            yield
        except (ConnectionError, UserError):
            raise
        except (FileNotFoundError, exceptions.DatasetsError) as error:
            raise UserError(_without_data(rows, error)) from error
        except (ValueError, RuntimeError) as error:
            raise UserError(_refused(rows, error)) from error


def _without_data(rows: HubRows, error: Exception) -> str:
    return (
        f"{rows} has no files of data that the library datasets reads"
        f" ({first_line(error)}): download the file that is meant, and give that."
    )


def _refused(rows: HubRows, error: Exception) -> str:
    return f"{rows} cannot be read ({first_line(error)}): correct the name, or give a file."


def _datasets(rows: HubRows) -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{rows} needs the package datasets: pip install 'fieldcraft[datasets]', or download"
            " a file of it and give that."
        ) from error
    datasets.disable_progress_bars()
    return datasets
