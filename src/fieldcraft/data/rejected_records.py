"""Records of a file that are left out: counts by reason, and an error if there are too many."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from fieldcraft.data.records import RecordError
from fieldcraft.types import UserError

MAX_REJECTED_SHARE = 0.1  # maximum fraction of the records of a file, without consent


class RejectedRecords:
    """Records that are left out of the file or source `path`, with the first one as an example."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.reasons = Counter[str]()
        self._first_message = ""
        self._wrong_key_message = ""

    def add(self, location: str, error: RecordError, hint: str = "") -> None:
        """Count a record. `hint` names another use of the file (`recipe_key_hints.py`)."""
        if not self.reasons:
            self._first_message = f"{location}: {error.message}"
            self._wrong_key_message = f"{location} holds {error}, but {hint}." if hint else ""
        self.reasons[str(error)] += 1

    def require_few(self, num_accepted: int, max_share: float) -> None:
        """Raise UserError, with the first record as an example, if no record was accepted or the
        fraction of left-out records exceeds `max_share`."""
        if not num_accepted and (self._wrong_key_message or len(self.reasons) == 1):
            raise UserError(self._wrong_key_message or self._first_message)
        total = num_accepted + self.reasons.total()
        require_few_rejected(
            self.path, total, self.reasons, max_share, self._first_message.removesuffix(".")
        )


def require_few_rejected(
    path: Path | str, total: int, reasons: Counter[str], max_share: float, example: str
) -> None:
    """Raise UserError if the fraction of left-out records exceeds `max_share`: then the file most
    likely has an unsupported format. `example` describes the error of one record."""
    summary = ", ".join(f"{count} with {reason}" for reason, count in reasons.most_common())
    if reasons.total() == total > 0:
        raise UserError(
            f"no record of {path} can be read ({summary}; such as {example}): correct the file, or"
            " give another one."
        )
    if total and reasons.total() / total > max_share:  # the suggested share is then accepted
        share = math.ceil(100 * reasons.total() / total) / 100
        raise UserError(
            f"{reasons.total()} of the {total} records of {path} would be left out ({summary}; such"
            f" as {example}): correct the file, or allow it with max_left_out={share:g}."
        )
