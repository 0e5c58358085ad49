"""Make .venv and install fieldcraft with all dependencies; only Python is required.

    python3 scripts/install.py [--real | --dev]

On Linux, pip installs the CUDA build of torch by default, gigabytes that a machine without a GPU
does not need. Such a machine gets the CPU build: from pip if it is configured to find one, else
from uv. Asking pip which build it would install does not help: older versions download the wheels
to find out.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"  # with a range, pip may replace a CPU build with a newer CUDA build
EXTRAS = {"--real": "[gazetteer,gguf]", "--dev": "[dev]"}  # of pyproject.toml; one at a time
ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"
PIP = [str(BIN / "python"), "-m", "pip", "--disable-pip-version-check", "-qq"]
# Modules are compiled on first import; most modules of torch are never imported.
INSTALL = [*PIP, "install", "--no-compile"]


def make_venv() -> None:
    """Make .venv, unless there is a working one."""
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may run this script
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(
            f"fieldcraft needs Python 3.11 or newer, but {sys.executable} is {found}: install a"
            " newer version and select it, as in 'make demo PYTHON=python3.12'."
        )
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(
            f"{sys.executable} cannot make virtual environments, because it has no ensurepip:"
            " install it (on Debian and Ubuntu: apt-get install python3-venv)."
        )
    if not (BIN / "python").exists() or not runs([*PIP, "--version"]):
        venv.create(ROOT / ".venv", clear=True, with_pip=True)


def has_gpu() -> bool:
    nvidia_smi = shutil.which("nvidia-smi")
    return nvidia_smi is not None and runs([nvidia_smi, "-L"])


def runs(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def installer() -> list[str]:
    """Return a command that installs torch, in the build for this machine, and more packages."""
    if sys.platform != "linux" or has_gpu():
        return [*INSTALL, TORCH]
    if runs([*PIP, "install", "--dry-run", "--no-deps", f"{TORCH}+cpu"]):
        return [*INSTALL, f"{TORCH}+cpu"]
    subprocess.run([*INSTALL, "uv"], check=True)
    uv = [str(BIN / "uv"), "pip", "install", "--python", str(BIN / "python")]
    return [*uv, "--quiet", "--torch-backend=cpu", TORCH]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    chosen = parser.add_mutually_exclusive_group()
    for option, packages in EXTRAS.items():
        chosen.add_argument(
            option, dest="extra", action="store_const", const=packages, default="", help=packages
        )
    extra = parser.parse_args().extra
    print(f"installing fieldcraft{extra} into .venv; this takes a minute or two the first time")
    make_venv()
    try:
        subprocess.run([*installer(), "-e", f"{ROOT}{extra}"], check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(
            "the installation failed (see the lines above): fix the cause and run make again;"
            f" the command was: {' '.join(error.cmd)}"
        )


if __name__ == "__main__":
    main()
