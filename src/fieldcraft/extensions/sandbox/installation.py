"""Folders of the host that hold the Python installation that programs may read."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

_LINKED_FOLDERS = ("/lib", "/lib64", "/lib32")
_TIME_ZONE_FOLDER = "/usr/share/zoneinfo"


def find_readable_folders() -> list[str]:
    """Return the folders of the standard library, installed packages, system libraries, time zones.

    No folder is inside another one, so that each is mounted once.
    """
    paths = sysconfig.get_paths()
    candidates = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    candidates |= {path for path in site.getsitepackages() if path in sys.path}
    candidates |= {str(Path(sys.base_prefix, "lib"))} if _has_own_prefix() else set()
    candidates |= _find_library_folders() | {_TIME_ZONE_FOLDER}
    found = sorted({os.path.realpath(path) for path in candidates if os.path.isdir(path)})
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]


def find_root_links() -> Mapping[str, str]:
    """Return the links in the root folder that lead to shared libraries, such as /lib ->
    usr/lib."""
    return {path: os.readlink(path) for path in _LINKED_FOLDERS if os.path.islink(path)}


def _has_own_prefix() -> bool:
    """Return whether Python is not the system's. The lib folder of the system's Python contains
    unrelated files, too."""
    return sys.base_prefix not in ("/usr", "/")


def _find_library_folders() -> set[str]:
    """Return the folders of the system's shared libraries that this process has loaded."""
    with open("/proc/self/maps") as maps:
        files = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    system = ("/lib", "/usr/lib")
    return {os.path.dirname(file) for file in files if ".so" in file and file.startswith(system)}
