"""Detection of unsupported file types: spreadsheets, archives, text in other encodings.

The type is detected from the first bytes of a file, regardless of its name.
"""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path
from typing import IO, cast

from fieldcraft.types import UserError

_HEAD_BYTES = 512
_CHUNK_BYTES = 2**20
_SPREADSHEET = "is a spreadsheet: export its sheet as CSV in UTF-8, and give that"
_ZIP = b"PK\x03\x04"
_OFFICE_MARKS = (b"[Content_Types].xml", b"_rels/", b"xl/", b"mimetype", b"Index/Document.iwa")
_UNSUPPORTED_TYPES = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _SPREADSHEET),  # Excel 97 to 2003
    (_ZIP, "is a ZIP archive: unpack it, and give the file that it contains"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive: unpack it, and give the file that it contains"),
    (b"%PDF-", "is a PDF: give its records as CSV or JSON"),
)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def open_maybe_gzip(path: Path) -> IO[bytes]:
    """Open a file, decompressed if its name ends in .gz."""
    return cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def require_text_file(path: Path) -> None:
    """Raise UserError for a spreadsheet, an archive, and text in UTF-16 or UTF-32."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_ZIP) and any(name in head for name in _OFFICE_MARKS):
        raise UserError(f"{path} {_SPREADSHEET}.")
    for magic, message in _UNSUPPORTED_TYPES:
        if head.startswith(magic):
            raise UserError(f"{path} {message}.")
    if name := _detect_wide_encoding(head):
        raise UserError(f"{path} is written in {name}: {_conversion_advice(path, name)}.")


def require_utf8(path: Path) -> None:
    """Raise UserError for text that is not encoded in UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_maybe_gzip(path) as file:
        try:
            while piece := file.read(_CHUNK_BYTES):
                decoder.decode(piece)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not written in UTF-8: save it as 'CSV UTF-8' or, if it comes from"
                f" Windows, {_conversion_advice(path, 'CP1252')}."
            ) from error


def _detect_wide_encoding(head: bytes) -> str:
    """Return the encoding of text with two or four bytes per character, or "" for other text."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if head.startswith(_UTF16):
        return "UTF-16"
    for start, name in ((1, "UTF-16LE"), (0, "UTF-16BE")):  # every other byte of ASCII is zero
        if len(head) > 3 and not any(head[start:40:2]) and all(head[1 - start : 40 : 2]):
            return name
    return ""


def _conversion_advice(path: Path, encoding: str) -> str:
    new = path.with_name(f"{path.stem}-utf8{path.suffix}")
    return f"convert it: iconv -f {encoding} -t UTF-8 '{path}' > '{new}'"
