"""Values in published records: results of tools, empty cells, and flags.

Values that cannot be parsed raise RecordError; none is replaced by an empty text. Flags exclude a
text, or a part of it, from training. A demonstration is trained on as a whole, so a record with
such a flag is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fieldcraft.data.prompts import extract_text
from fieldcraft.data.records import RecordError


def extract_result_text(content: Any) -> str:
    """Return the text of a tool's result; objects and other values are returned as JSON."""
    if content is None:
        raise RecordError("a result without a content")
    if isinstance(content, str) or (
        isinstance(content, list) and any(map(_is_content_part, content))
    ):
        return extract_text(content)
    return json.dumps(content, ensure_ascii=False)


def _is_content_part(value: Any) -> bool:
    """Return whether a value is a message part of the OpenAI API. A table pads it with the keys of
    other kinds of parts."""
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and (
        kind == "text" or drop_empty_keys(value).keys() == {"type", kind}
    )


def drop_empty_keys(value: Any) -> Any:
    """Return a table value without the keys that its row leaves empty: a column of objects has the
    keys of all rows."""
    if isinstance(value, dict):
        return {key: drop_empty_keys(inner) for key, inner in value.items() if inner is not None}
    return [drop_empty_keys(inner) for inner in value] if isinstance(value, list) else value


# -- flags -------------------------------------------------------------------------------------

# Keys of a turn, in the files of OpenAI, axolotl, ms-swift, TRL, slime and others.
TRAIN_KEYS = (
    *("weight", "loss_weight", "loss_scale", "loss", "loss_mask", "step_loss_mask"),
    *("calculate_loss", "train", "training", "trainable", "train_on_turn", "is_trained"),
)
MASK_KEYS = ("mask", "masked")
PARTIAL_KEYS = ("train_detail", "refusal", "audio")  # the turn is more than its text
TRAIN_VALUES = (True, 1, "1", "true", "True")
EMPTY_VALUES: tuple[Any, ...] = (None, False, 0, "0", "false", "False", "", [], {})
# Keys of a record: KTO's and other verdicts on its answer, and a weight of the record.
VERDICT_KEYS = (
    *("label", "kto_tag", "weight", "train", "correct", "is_correct", "is_right", "success"),
    *("is_success", "resolved", "passed", "is_accepted", "reward"),
)


def require_trainable_turn(turn: Mapping[str, Any]) -> None:
    """Raise RecordError for a turn of the assistant that is context only, or not only text."""
    for key in TRAIN_KEYS:
        if turn.get(key) is not None and turn[key] not in TRAIN_VALUES:
            raise RecordError(f"a turn that is not to be trained, by its key '{key}'")
    for key in MASK_KEYS:
        if turn.get(key) not in EMPTY_VALUES:
            raise RecordError(f"a turn that is not to be trained, by its key '{key}'")
    for key in PARTIAL_KEYS:
        if turn.get(key) not in EMPTY_VALUES:
            raise RecordError(f"a turn that is more than its text, by its key '{key}'")


def require_trainable_record(record: Mapping[str, Any]) -> None:
    """Raise RecordError for a record that is a negative example."""
    for key in VERDICT_KEYS:
        if str(record.get(key)).strip().lower() in ("false", "0", "0.0"):  # cells are texts
            raise RecordError(f"a record that is not to be trained, by its key '{key}'")
