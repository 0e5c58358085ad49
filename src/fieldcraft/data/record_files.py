"""Files and folders of records: JSON, parquet, and Hugging Face dataset folders.

A folder is either one written by `save_to_disk` of the datasets library, or one of parquet files,
as on the hub, whose names start with their split.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow
import pyarrow.parquet

from fieldcraft.config.names import UTF8_ADVICE, format_short
from fieldcraft.records.files import atomic_file, atomic_folder, dump_finite_json, write_text
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.types import UserError

TableRecord = dict[str, Any]
# Objects whose keys differ from row to row, which a table would pad with empty keys.
_JSON_COLUMNS = ("tools", "metadata")


# -- folders -----------------------------------------------------------------------------------


def is_dataset_folder(path: Path) -> bool:
    """Return whether a path is a dataset folder, or FOLDER/SPLIT of one."""
    return path.is_dir() or (
        not path.exists() and bool(_find_parquet_files(path.parent, path.name))
    )


def read_dataset_folder(path: Path) -> list[TableRecord]:
    """Read the rows of FOLDER, or of FOLDER/SPLIT. Raises UserError for a folder with several
    splits, with no data, or with damaged files."""
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        return _read_saved_dataset(path)
    files = (
        _find_parquet_files(path, "")
        if path.is_dir()
        else _find_parquet_files(path.parent, path.name)
    )
    if not files:
        raise UserError(
            f"{path} is a folder without a dataset: give a file, or a folder that datasets or a hub"
            " wrote."
        )
    _require_one_split(path, {file.stem.partition("-")[0] for file in files})
    with raise_read_errors(path, "fetch the folder again"):
        tables = [pyarrow.parquet.read_table(file) for file in files]
        rows: list[TableRecord] = pyarrow.concat_tables(
            tables, promote_options="default"
        ).to_pylist()
    return rows


def _find_parquet_files(folder: Path, split: str) -> list[Path]:
    """Return the parquet files of a folder, or of its folder `data`, that belong to a split."""
    if not folder.is_dir():
        return []
    found = [*folder.glob("*.parquet"), *folder.glob("data/*.parquet")]
    return sorted(file for file in found if split in ("", file.stem.partition("-")[0]))


def _read_saved_dataset(path: Path) -> list[TableRecord]:
    """Return the records of a folder written by `save_to_disk`."""
    library = _import_datasets()
    with raise_read_errors(path, "save the dataset again"):
        found = library.load_from_disk(str(path))
    if isinstance(found, library.DatasetDict):
        _require_one_split(path, set(found))
        found = next(iter(found.values()))
    rows: list[TableRecord] = found.to_list()
    return rows


def _require_one_split(path: Path, splits: set[str]) -> None:
    if len(splits) > 1:
        names = ", ".join(sorted(splits))
        raise UserError(
            f"{path} has the splits {names}: give one of them, as in {path / min(splits)}."
        )


def _import_datasets() -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            "a folder of save_to_disk needs the package datasets: pip install"
            " 'fieldcraft[datasets]', or use a .parquet file."
        ) from error
    return datasets


# -- writing -----------------------------------------------------------------------------------


def write_records(rows: Sequence[TableRecord], out: Path) -> None:
    """Write records in the format given by the suffix of `out`: .jsonl, .json (an array), .parquet,
    or none for a folder of `save_to_disk`, which must be new. Raises UserError for another suffix,
    and for records that do not fit into a table."""
    writers: dict[str, Callable[[Path, Sequence[TableRecord]], None]] = {
        ".jsonl": write_json_lines,
        ".json": write_json_array,
        ".parquet": _write_parquet,
        "": _write_folder,
    }
    if out.suffix not in writers:
        raise UserError(
            f"{out} has an unsupported suffix: use .jsonl, .json, .parquet, or none"
            " for a folder of Hugging Face's datasets."
        )
    writers[out.suffix](out, rows)


def write_json_array(out: Path, rows: Sequence[TableRecord]) -> None:
    """Write a JSON array atomically."""
    write_text(out, [dump_finite_json(out, list(rows), ensure_ascii=False, indent=1) + "\n"])


def _write_parquet(out: Path, rows: Sequence[TableRecord]) -> None:
    table = _make_table(rows, out)
    with atomic_file(out) as draft:
        pyarrow.parquet.write_table(table, draft)


def _write_folder(out: Path, rows: Sequence[TableRecord]) -> None:
    dataset = _import_datasets().Dataset(_make_table(rows, out))
    with atomic_folder(out) as draft:
        dataset.save_to_disk(str(draft))


def _make_table(rows: Sequence[TableRecord], out: Path) -> pyarrow.Table:
    encoded_rows = [
        {
            key: json.dumps(value, ensure_ascii=False)
            if key in _JSON_COLUMNS and not isinstance(value, str)
            else value
            for key, value in record.items()
        }
        for record in rows
    ]
    keys = dict.fromkeys(key for row in encoded_rows for key in row)
    try:
        columns = {key: pyarrow.array([row.get(key) for row in encoded_rows]) for key in keys}
        _require_struct_keys(columns)
    except UnicodeEncodeError as error:
        raise UserError(
            f"{out} cannot hold {format_short(error.object)}: {UTF8_ADVICE}."
        ) from error
    except (pyarrow.ArrowException, OverflowError) as error:
        raise UserError(
            f"the records do not fit into one table ({error}): write {out.stem}.jsonl."
        ) from error
    return pyarrow.table(columns)


def _require_struct_keys(columns: dict[str, pyarrow.Array]) -> None:
    """Raise ArrowInvalid for a column of objects without keys, which parquet cannot represent."""
    for name, column in columns.items():
        if "struct<>" in str(column.type):
            raise pyarrow.ArrowInvalid(f"objects in '{name}' have no keys")
