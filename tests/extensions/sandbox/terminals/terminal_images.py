"""A small image of containers that has a shell, and the programs of this machine that tests use."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

BASE_IMAGE = "localhost/fieldcraft-test:terminal"
_PROGRAMS = ("sh", "bash", "tar", "cat", "chmod", "mkdir", "rm", "head", "sleep", "ls", "seq", "id")


def run_engine(engine: str, *arguments: str, data: bytes | None = None) -> str:
    command = [engine, *arguments]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def list_containers(engine: str) -> list[str]:
    listed = run_engine(engine, "ps", "--all", "--filter=label=fieldcraft", "--format={{.Names}}")
    return listed.split()


def _list_libraries(program: str) -> Sequence[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]


@contextlib.contextmanager
def build_base_image(engine: str) -> Iterator[str]:
    """Import the image, and remove it with all images that were built from it."""
    archive, added = io.BytesIO(), set[str]()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        temporary = tarfile.TarInfo("tmp")
        temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(temporary)
        home = tarfile.TarInfo("root")
        home.type, home.mode = tarfile.DIRTYPE, 0o700
        tar.addfile(home)
        for link in filter(os.path.islink, ("/bin", "/lib", "/lib64")):
            tar.add(link)
        for name in _PROGRAMS:
            program = shutil.which(name)
            assert program is not None
            for file in (program, *_list_libraries(program)):
                target = str(Path(os.path.realpath(os.path.dirname(file)), os.path.basename(file)))
                if target not in added:
                    added.add(target)
                    tar.add(os.path.realpath(file), arcname=target)
    run_engine(engine, "import", "-", BASE_IMAGE, data=archive.getvalue())
    try:
        yield BASE_IMAGE
    finally:
        names = "--format={{.Repository}}:{{.Tag}}"
        built = run_engine(engine, "images", names, "localhost/fieldcraft-terminal").split()
        run_engine(engine, "rmi", "--force", *built, BASE_IMAGE)
