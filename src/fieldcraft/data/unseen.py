"""Questions that are asked a second time, with tool names that do not occur in training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fieldcraft.dialects.tool_names import CALLED_KEY, UNSEEN_NAMES
from fieldcraft.types import Task

UNSEEN_SPLIT_TITLE = "The first questions once more, with names of tools that no training shows"


def make_unseen_name_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Return the questions as members of the split `unseen`."""
    return [
        replace(
            task,
            id=f"{task.id}:{UNSEEN_NAMES}",
            meta=task.meta | {"split": UNSEEN_NAMES, CALLED_KEY: UNSEEN_NAMES},
        )
        for task in tasks
    ]
