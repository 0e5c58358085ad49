"""JSON lines: errors name the file and the line; a file is written whole or not at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fieldcraft.records.files import write_text
from fieldcraft.types import UserError


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) for each line that is not blank; `.gz` is unpacked.

    Raises:
        UserError: the file is missing or damaged, or a line is not a JSON object.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file of JSON lines.")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _object(line, f"{path}, line {number}")
        except (gzip.BadGzipFile, EOFError) as error:
            raise UserError(f"{path} is not a whole gzip file; fetch it again.") from error


def write_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one object per line, whole or not at all."""
    write_text(path, (json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}); fix or remove the line.") from error
    if not isinstance(record, dict):
        raise UserError(f"{where} is not a JSON object; write one {{...}} a line.")
    return record
