"""Memory that this process may have: that of the machine, or less where a group is bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def machine_memory(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Return the bytes that this process may have: all of the machine's (caches give way), or the
    least that a control group, of either version, leaves it. `groups` is where they are mounted,
    and `own` lists its own."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_limits(groups, own)])


def _limits(groups: Path, own: Path) -> Iterator[int]:
    """Yield the limits of the process's groups and of those above them: each binds."""
    if not own.exists():
        return
    for line in own.read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        tops = [groups / "memory"] if controllers else [groups, groups / "unified"]
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        inside = PurePosixPath(place.lstrip("/"))
        for folder in (top / above for top in tops for above in (inside, *inside.parents)):
            text = _text(folder / name)
            if text.isdecimal():  # "max" is none
                yield int(text)


def _text(file: Path) -> str:
    """Return the text of a file; nothing where it may not be read, or a container does not show
    it."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
