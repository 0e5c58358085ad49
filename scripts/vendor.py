"""Download fixed versions of the libraries of the `fieldcraft studio` page, with their licences.

python scripts/vendor.py            writes them to src/fieldcraft/extensions/studio/static/vendor
python scripts/vendor.py --check    exits with 1 if the files differ

It needs npm, which also downloads esbuild to bundle and minify the modules of a library.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from filecmp import dircmp
from pathlib import Path
from tempfile import TemporaryDirectory

TARGET = Path(__file__).resolve().parent.parent / "src/fieldcraft/extensions/studio/static/vendor"
ESBUILD = "esbuild@0.25.12"
# Package -> source file -> file name in the target folder.
COPIED = {
    "lit-html@3.3.3": {"lit-html.js": "lit-html.js", "LICENSE": "lit-html.LICENSE"},
    "uplot@1.6.32": {
        "dist/uPlot.iife.min.js": "uplot.js",
        "dist/uPlot.min.css": "uplot.css",
        "LICENSE": "uplot.LICENSE",
    },
    "@tanstack/virtual-core@3.19.11": {"LICENSE": "virtual-core.LICENSE"},
}
BUILT = {"@tanstack/virtual-core@3.19.11": ("dist/esm/index.js", "virtual-core.js")}


def fetch(package: str, folder: Path) -> Path:
    """Download and unpack a package of the registry, and return its folder."""
    place = folder / package.replace("/", "-")
    place.mkdir()
    command = ["npm", "pack", "--silent", "--pack-destination", str(place), package]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [archive] = place.glob("*.tgz")
    shutil.unpack_archive(archive, place, filter="data")
    return place / "package"


def build(source: Path, target: Path) -> None:
    """Bundle a module and its imports into one file."""
    options = ["--bundle", "--minify", "--format=esm", "--charset=utf8", "--legal-comments=none"]
    defined = '--define:process.env.NODE_ENV="production"'
    command = ["npx", "--yes", ESBUILD, str(source), *options, defined, f"--outfile={target}"]
    subprocess.run([*command, "--log-level=error"], check=True)


def write(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        for package, files in COPIED.items():
            contents = fetch(package, Path(scratch))
            for source, name in files.items():
                text = (contents / source).read_text("utf-8")
                lines = [line for line in text.splitlines() if "sourceMappingURL" not in line]
                (target / name).write_text("\n".join(lines) + "\n", "utf-8")
            if package in BUILT:
                source, name = BUILT[package]
                build(contents / source, target / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare the files instead")
    if not parser.parse_args().check:
        write(TARGET)
        return 0
    with TemporaryDirectory() as scratch:
        write(Path(scratch, "vendor"))
        compared = dircmp(TARGET, Path(scratch, "vendor"), ignore=[])
        other = [*compared.left_only, *compared.right_only, *compared.diff_files]
    print("\n".join(f"{name} differs" for name in other) or "all files are as published")
    return 1 if other else 0


if __name__ == "__main__":
    raise SystemExit(main())
