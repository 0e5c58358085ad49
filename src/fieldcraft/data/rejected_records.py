"""Records of a file that are left out: counted by reason, and refused where they are many."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from fieldcraft.data.records import RecordError
from fieldcraft.types import UserError

MAX_REJECTED_SHARE = 0.1  # of the records of a file, without consent


class RejectedRecords:
    """Records that are left out of the file `path`, or of what else holds them, and the first."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.reasons = Counter[str]()
        self._first_message = ""
        self._wrong_key_message = ""

    def add(self, location: str, error: RecordError, hint: str = "") -> None:
        """Count a record. `hint` says what else the file may be for (`recipe_key_hints.py`)."""
        if not self.reasons:
            self._first_message = f"{location}: {error.message}"
            self._wrong_key_message = f"{location} holds {error}, but {hint}." if hint else ""
        self.reasons[str(error)] += 1

    def require_few(self, num_accepted: int, max_share: float) -> None:
        """Raise UserError, with the first record, if nothing is kept or more than the share
        `max_share` of the records is left out."""
        if not num_accepted and (self._wrong_key_message or len(self.reasons) == 1):
            raise UserError(self._wrong_key_message or self._first_message)
        total = num_accepted + self.reasons.total()
        require_few_rejected(
            self.path, total, self.reasons, max_share, self._first_message.removesuffix(".")
        )


def require_few_rejected(
    path: Path | str, total: int, reasons: Counter[str], max_share: float, example: str
) -> None:
    """Raise UserError if more than the share `max_share` of the records of a file are left out:
    then most likely the file is not understood. `example` says of one record what is wrong."""
    summary = ", ".join(f"{count} with {reason}" for reason, count in reasons.most_common())
    if reasons.total() == total > 0:
        raise UserError(
            f"no record of {path} can be read ({summary}; such as {example}): correct the file, or"
            " give another one."
        )
    if total and reasons.total() / total > max_share:  # the share that is named below is agreed to
        share = math.ceil(100 * reasons.total() / total) / 100
        raise UserError(
            f"{reasons.total()} of the {total} records of {path} would be left out ({summary}; such"
            f" as {example}): correct the file, or allow it with max_left_out={share:g}."
        )
