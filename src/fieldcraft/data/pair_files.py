"""Readers of contrastive pairs in any format.

The formats are this project's own (`steps_io.py`), AutoCoA's (`autocoa.py`), and those of
preference trainers (`formats/preference_pairs.py`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fieldcraft.data import autocoa, steps_io
from fieldcraft.data.formats.preference_pairs import is_pair, parse_pair
from fieldcraft.data.recipe_key_hints import suggest_recipe_key
from fieldcraft.data.records import RecordError, read_records, read_valid_records, require_record
from fieldcraft.data.rejected_records import MAX_REJECTED_SHARE, RejectedRecords
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.types import UserError


def read_any_pairs(
    path: Path, max_left_out: float = MAX_REJECTED_SHARE
) -> tuple[list[ContrastivePair], Counter[str]]:
    """Read the pairs of a file, whose format is detected from its first record, with counts of
    reasons for which others were left out.

    Raises UserError for a file that is missing, damaged or of an unknown format, or if the fraction
    of unreadable records exceeds `max_left_out`.
    """
    _, record = next(read_valid_records(path), ("", {}))
    if "before" in record:
        return steps_io.read_pairs(path), Counter()
    if "conversation" in record:
        return autocoa.read_pairs(path)
    if not is_pair(record):
        hint = suggest_recipe_key(record, "pairs")
        raise UserError(
            f"{path} holds no pairs of a 'chosen' and a 'rejected' answer"
            + (f", but {hint}." if hint else ": add them, or give another file.")
        )
    rejected = RejectedRecords(path)
    pairs: list[ContrastivePair] = []
    for location, found in read_records(path):
        try:
            pairs.append(parse_pair(require_record(found)))
        except RecordError as error:
            rejected.add(location, error)
    rejected.require_few(len(pairs), max_left_out)
    return pairs, rejected.reasons
