"""BrowseComp's file (arXiv 2504.12516), which has no question and no answer as plain text.

Each is the base64 of a text whose bytes are combined by XOR with SHA-256 of the record's `canary`,
repeated (as in OpenAI's simple-evals).
"""

from __future__ import annotations

import base64
import hashlib
from itertools import cycle

from fieldcraft.data.records import Record, RecordError


def decrypt_record(record: Record) -> Record:
    """Return a record of BrowseComp with its texts, and its topic as `level`; any other as it is.

    Raises RecordError for texts that the canary does not open.
    """
    if not {"problem", "answer", "canary"} <= record.keys():
        return record
    canary = str(record["canary"])
    try:
        problem, answer = (decrypt(str(record[key]), canary) for key in ("problem", "answer"))
    except ValueError as error:
        raise RecordError(
            "texts that the canary does not open",
            "the canary does not open the problem and the answer; give the file as it was"
            " published.",
        ) from error
    decrypted = record | {"problem": problem, "answer": answer}
    return decrypted | ({"level": record["problem_topic"]} if record.get("problem_topic") else {})


def decrypt(text: str, canary: str) -> str:
    """Return the plain text of an encrypted one. Raises ValueError where it is none."""
    key = cycle(hashlib.sha256(canary.encode()).digest())
    secret = base64.b64decode(text, validate=True)
    return bytes(byte ^ mask for byte, mask in zip(secret, key, strict=False)).decode()
