"""Images of containers that contain the Python of these tests, so that none is downloaded."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

# Modules whose shared libraries the image needs
_MODULES = "ctypes, hashlib, json, resource, selectors, sqlite3, ssl, urllib.request, zlib"
_LEFT_OUT = {"site-packages", "test", "idlelib", "__pycache__", "tkinter", "ensurepip"}
_SILENT = "#!{python} -S\nimport time\ntime.sleep(3600)\n"


def _list_shared_libraries() -> list[str]:
    code = f"import {_MODULES}\nprint(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    files = {line.split(maxsplit=5)[5] for line in maps.stdout.splitlines() if "/" in line}
    return sorted(file for file in files if ".so" in file and "site-packages" not in file)


def _make_archive(is_silent: bool) -> bytes:
    """Return a root file system. In a silent one, python3 never answers."""
    python = os.path.realpath(sys.executable)
    archive, names = io.BytesIO(), set()

    def keep(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
        is_left_out = _LEFT_OUT & {*Path(item.name).parts} or item.name.endswith(".a")
        if is_left_out or item.name in names:
            return None
        names.add(item.name)
        return item

    def add_text(name: str, text: str) -> None:
        item = tarfile.TarInfo(name)
        item.size, item.mode = len(text), 0o755
        tar.addfile(item, io.BytesIO(text.encode()))

    with tarfile.open(fileobj=archive, mode="w") as tar:
        for link in ("/lib", "/lib64", "/bin"):
            if os.path.islink(link):
                tar.add(link, filter=keep)
        library = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
        tar.add(str(Path(sys.base_prefix, library)), filter=keep)
        for file in {python, "/usr/bin/env", *_list_shared_libraries()}:
            real = Path(os.path.realpath(file))
            # Programs name a library by a link, such as libz.so.1.
            links = [path for path in real.parent.glob("lib*.so*") if path.resolve() == real]
            for name in (Path(file), real, *links):
                tar.add(real, arcname=str(name), filter=keep)
        for loader in (*Path("/lib64").glob("ld-linux*"), *Path("/lib").glob("ld-linux*")):
            name = str(Path(os.path.realpath(loader.parent), loader.name))
            tar.add(os.path.realpath(loader), arcname=name, filter=keep)
        if is_silent:
            add_text("usr/bin/python3", _SILENT.format(python=python))
        else:
            add_text("usr/bin/python3", f'#!/bin/sh\nexec {python} "$@"\n')
            tar.add(os.path.realpath("/bin/sh"), arcname="/usr/bin/sh", filter=keep)
    return archive.getvalue()


@contextlib.contextmanager
def open_image(engine: str, name: str, *, is_silent: bool = False) -> Iterator[str]:
    """Import an image of this machine's Python, and remove it at the end."""
    subprocess.run(
        [engine, "import", "-", name],
        input=_make_archive(is_silent),
        capture_output=True,
        check=True,
    )
    try:
        yield name
    finally:
        subprocess.run([engine, "image", "rm", "--force", name], capture_output=True, check=True)


def list_containers(engine: str) -> list[str]:
    """Return the names of all containers of fieldcraft, stopped ones too."""
    command = [engine, "ps", "--all", "--filter", "label=fieldcraft", "--format", "{{.Names}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
