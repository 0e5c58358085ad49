"""Memory that this process may have: that of the machine, or less where a group is bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUP_MOUNT, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def read_memory_limit(cgroup_mount: Path = CGROUP_MOUNT, own_cgroups: Path = OWN_CGROUPS) -> int:
    """Return the bytes that this process may have: all of the machine's (caches give way), or the
    least that a control group, of either version, leaves it. `cgroup_mount` is where they are
    mounted, and `own_cgroups` lists its own."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_read_limits(cgroup_mount, own_cgroups)])


def _read_limits(cgroup_mount: Path, own_cgroups: Path) -> Iterator[int]:
    """Yield the limits of the process's groups and of those above them: each binds."""
    if not own_cgroups.exists():
        return
    for line in own_cgroups.read_text().splitlines():
        _, controllers, cgroup = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        roots = (
            [cgroup_mount / "memory"] if controllers else [cgroup_mount, cgroup_mount / "unified"]
        )
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group_path = PurePosixPath(cgroup.lstrip("/"))
        for folder in (
            root / ancestor for root in roots for ancestor in (group_path, *group_path.parents)
        ):
            text = _read_text(folder / name)
            if text.isdecimal():  # "max" is none
                yield int(text)


def _read_text(file: Path) -> str:
    """Return the text of a file; nothing where it may not be read, or a container does not show
    it."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
