"""Keys of others that say a text is not to be learned, or not as a whole.

A demonstration is learned whole, so a record with such a key is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fieldcraft.data.records import RecordError

# Of a turn, in the files of OpenAI, axolotl, ms-swift, TRL, slime and others.
TRAIN_KEYS = (
    *("weight", "loss_weight", "loss_scale", "loss", "loss_mask", "step_loss_mask"),
    *("calculate_loss", "train", "training", "trainable", "train_on_turn", "is_trained"),
)
MASK_KEYS = ("mask", "masked")
PARTIAL_KEYS = ("train_detail", "refusal", "audio")  # something beside the text matters
TRAIN_VALUES = (True, 1, "1", "true", "True")
EMPTY_VALUES: tuple[Any, ...] = (None, False, 0, "0", "false", "False", "", [], {})
# Of a record: KTO's verdict on its answer and those of others, and a weight among the records.
VERDICT_KEYS = (
    *("label", "kto_tag", "weight", "train", "correct", "is_correct", "is_right", "success"),
    *("is_success", "resolved", "passed", "is_accepted", "reward"),
)


def require_trainable_turn(turn: Mapping[str, Any]) -> None:
    """Raise RecordError for a turn of the assistant that is context only, or not all text."""
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
    """Raise RecordError for a record that shows how not to answer."""
    for key in VERDICT_KEYS:
        if record.get(key) in (False, "false", "False"):  # 0 as well
            raise RecordError(f"a record that is not to be trained, by its key '{key}'")
