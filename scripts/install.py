"""Make .venv and install fieldcraft with all it needs; nothing but Python has to be there.

    python3 scripts/install.py [--real | --dev]

Plain pip takes the CUDA build of torch on Linux, gigabytes that a machine without a GPU has no use
for. There the CPU build is installed: pip's own if it is set up to find one, else the one that uv
knows. Asking pip what it would install is no way out, as older pips fetch the wheels to find out.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"  # a range would let pip replace a CPU build by a newer CUDA build
EXTRAS = {"--real": "[gazetteer,gguf]", "--dev": "[dev]"}  # of pyproject.toml; one at a time
ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"
PIP = [str(BIN / "python"), "-m", "pip", "--disable-pip-version-check", "-qq"]
# Modules are compiled when they are first imported; most of those in torch never are.
INSTALL = [*PIP, "install", "--no-compile"]


def make_venv() -> None:
    """An existing .venv is kept if it works."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this script is run by whatever Python is there
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(
            f"fieldcraft needs Python 3.11 or newer, and {sys.executable} is {found}: install a"
            " newer one and name it, as in 'make demo PYTHON=python3.12'."
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
    """The command that installs torch, in the build that fits this machine, and what follows it."""
    if sys.platform != "linux" or has_gpu():
        return [*INSTALL, TORCH]
    if runs([*PIP, "install", "--dry-run", "--no-deps", f"{TORCH}+cpu"]):
        return [*INSTALL, f"{TORCH}+cpu"]
    subprocess.run([*INSTALL, "uv"], check=True)
    uv = [str(BIN / "uv"), "pip", "install", "--python", str(BIN / "python")]
    return [*uv, "--quiet", "--torch-backend=cpu", TORCH]


def main() -> None:
    extra = "".join(EXTRAS[argument] for argument in sys.argv[1:])
    print(f"installing fieldcraft{extra} into .venv; the first time takes a minute or two")
    make_venv()
    try:
        subprocess.run([*installer(), "-e", f"{ROOT}{extra}"], check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(
            "the installation failed (the lines above tell why): fix that and run make again;"
            f" the command was: {' '.join(error.cmd)}"
        )


if __name__ == "__main__":
    main()
