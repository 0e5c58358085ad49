"""Pages of results: functions of an extension that the kernel knows by name only.

Without the extension a run writes `report.json` and its tables, and no page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from fieldcraft.config.components import PAGE_EXTENSION, PAGE_WRITERS, PageKind
from fieldcraft.config.names import import_object, is_installed
from fieldcraft.types import Author


@dataclass(frozen=True, slots=True)
class PageContext:
    """Information that the page requires about the run of its trajectories: the text of a token,
    the trained segments of each stage, and, relative to the page, the trajectory files by
    evaluation, the metrics files by stage, and the page with data examples. `commands` show the
    trajectories of an evaluation, without the number; by default they refer to the folder of the
    page."""

    decode_token: Callable[[int], str] | None = None
    trained_authors: Mapping[str, AbstractSet[Author]] = field(default_factory=dict)
    trajectories: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    examples: str | None = None
    commands: Mapping[str, str] = field(default_factory=dict)


def find_page_writer(kind: PageKind) -> Callable[..., None] | None:
    """Return the function that writes a kind of page, or None without the extension."""
    if not is_installed(PAGE_EXTENSION):
        return None
    writer: Callable[..., None] = import_object(PAGE_WRITERS[kind])
    return writer
