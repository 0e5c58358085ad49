"""Memory that this process may use, without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUP_MOUNT, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def read_memory_limit(cgroup_mount: Path = CGROUP_MOUNT, own_cgroups: Path = OWN_CGROUPS) -> int:
    """Return the bytes available to this process: the machine's memory (including caches), or the
    lowest limit of its control groups, of version 1 or 2. `cgroup_mount` is their mount point, and
    `own_cgroups` the file that lists the process's groups."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_read_limits(cgroup_mount, own_cgroups)])


def _read_limits(cgroup_mount: Path, own_cgroups: Path) -> Iterator[int]:
    """Yield the limits of the process's groups and of their parents, all of which apply."""
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
            if text.isdecimal():  # "max" means no limit
                yield int(text)


def _read_text(file: Path) -> str:
    """Return the text of a file; "" if it is not readable or not visible in a container."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
