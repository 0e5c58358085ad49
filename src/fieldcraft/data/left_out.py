"""Records of a file that are left out: counted by reason, and refused where they are many."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from fieldcraft.data.records import Malformed
from fieldcraft.types import UserError

MAX_LEFT_OUT = 0.1  # of the records of a file, without consent


class LeftOut:
    """Records that are left out of the file `path`, or of what else holds them, and the first."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.reasons = Counter[str]()
        self._first = ""
        self._of_no_use = ""

    def add(self, where: str, error: Malformed, other_use: str = "") -> None:
        """Count a record. `other_use` says what else the file may be for (`other_uses.py`)."""
        if not self.reasons:
            self._first = f"{where}: {error.sentence}"
            self._of_no_use = f"{where} holds {error}, but {other_use}." if other_use else ""
        self.reasons[str(error)] += 1

    def refuse_much(self, kept: int, most: float) -> None:
        """Raise UserError, with the first record, if nothing is kept or more than the share `most`
        of the records is left out."""
        if not kept and (self._of_no_use or len(self.reasons) == 1):
            raise UserError(self._of_no_use or self._first)
        total = kept + self.reasons.total()
        refuse_much_left_out(self.path, total, self.reasons, most, self._first.removesuffix("."))


def refuse_much_left_out(
    path: Path | str, total: int, reasons: Counter[str], most: float, first: str
) -> None:
    """Raise UserError if more than the share `most` of the records of a file are left out: then
    most likely the file is not understood. `first` says of one record what is wrong."""
    why = ", ".join(f"{count} with {reason}" for reason, count in reasons.most_common())
    if reasons.total() == total > 0:
        raise UserError(
            f"no record of {path} can be read ({why}; such as {first}): correct the file, or"
            " give another one."
        )
    if total and reasons.total() / total > most:  # the share that is named below is agreed to
        share = math.ceil(100 * reasons.total() / total) / 100
        raise UserError(
            f"{reasons.total()} of the {total} records of {path} would be left out ({why}; such as"
            f" {first}): correct the file, or agree by max_left_out={share:g}."
        )
