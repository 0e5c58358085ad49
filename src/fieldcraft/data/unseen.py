"""Questions that are asked once more, with tools under names that no training shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fieldcraft.dialects.naming import CALLED, UNSEEN
from fieldcraft.types import Task

TITLE = "The first questions once more, with names of tools that no training shows"


def asked_again(tasks: Iterable[Task]) -> list[Task]:
    """Return the questions as those of the split `unseen`."""
    return [
        replace(
            task,
            id=f"{task.id}:{UNSEEN}",
            meta=task.meta | {"split": UNSEEN, CALLED: UNSEEN},
        )
        for task in tasks
    ]
