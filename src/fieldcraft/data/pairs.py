"""Pairs of any format, as steps.

They are this project's own (`steps_io.py`), AutoCoA's (`autocoa.py`), and those that trainers of
preferences take (`formats/pairs.py`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fieldcraft.data import autocoa, steps_io
from fieldcraft.data.formats.pairs import holds_pair, read_pair
from fieldcraft.data.left_out import MAX_LEFT_OUT, LeftOut
from fieldcraft.data.other_uses import other_use
from fieldcraft.data.records import Malformed, readable_records, records, understood
from fieldcraft.data.steps_io import StepPair
from fieldcraft.types import UserError


def read_pairs(
    path: Path, max_left_out: float = MAX_LEFT_OUT
) -> tuple[list[StepPair], Counter[str]]:
    """Read the pairs of a file, whose first record says which format it is, and why others were
    left out.

    Raises UserError for a file that is missing or damaged, of no format, or of which more than the
    share `max_left_out` cannot be read.
    """
    _, record = next(readable_records(path), ("", {}))
    if "before" in record:
        return steps_io.read_pairs(path), Counter()
    if "conversation" in record:
        return autocoa.read_pairs(path)
    if not holds_pair(record):
        use = other_use(record, "pairs")
        raise UserError(
            f"{path} holds no pairs of a 'chosen' and a 'rejected' answer"
            + (f", but {use}." if use else ": add them, or give another file.")
        )
    left_out = LeftOut(path)
    pairs: list[StepPair] = []
    for where, found in records(path):
        try:
            pairs.append(read_pair(understood(found)))
        except Malformed as error:
            left_out.add(where, error)
    left_out.refuse_much(len(pairs), max_left_out)
    return pairs, left_out.reasons
