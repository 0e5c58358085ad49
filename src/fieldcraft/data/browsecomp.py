"""BrowseComp's file format (arXiv 2504.12516), in which questions and answers are encrypted.

Each value is the base64 encoding of a text XORed with the repeated SHA-256 digest of the record's
`canary` (as in OpenAI's simple-evals).
"""

from __future__ import annotations

import base64
import hashlib
from itertools import cycle

from fieldcraft.data.records import Record, RecordError


def decrypt_record(record: Record) -> Record:
    """Decrypt the texts of a BrowseComp record and set its topic as `level`; return any other
    record unchanged.

    Raises RecordError if the canary does not decrypt the texts.
    """
    if not {"problem", "answer", "canary"} <= record.keys():
        return record
    canary = str(record["canary"])
    try:
        problem, answer = (decrypt(str(record[key]), canary) for key in ("problem", "answer"))
    except ValueError as error:
        raise RecordError(
            "texts that the canary does not decrypt",
            "the canary does not decrypt the problem and the answer; give the file as it was"
            " published.",
        ) from error
    decrypted = record | {"problem": problem, "answer": answer}
    return decrypted | ({"level": record["problem_topic"]} if record.get("problem_topic") else {})


def decrypt(text: str, canary: str) -> str:
    """Return the decrypted text. Raises ValueError if decryption fails."""
    key = cycle(hashlib.sha256(canary.encode()).digest())
    secret = base64.b64decode(text, validate=True)
    return bytes(byte ^ mask for byte, mask in zip(secret, key, strict=False)).decode()
