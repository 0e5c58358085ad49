"""Print the verdicts on the causal architectures of transformers.

python scripts/architecture_table.py            prints the table
python scripts/architecture_table.py --write    writes it into docs/lab-notes/architectures.md

It takes some minutes, because a small model of each architecture is trained and sampled.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "lab-notes" / "architectures.md"
BEGIN, END = "<!-- architectures -->\n", "<!-- /architectures -->"
sys.path[:0] = [str(ROOT / "tests")]

architectures: Any = import_module("architectures")  # module of the tests


def table() -> str:
    """Return the rows of the architectures with a small model."""
    rows = ["| architecture | trained and sampled |", "|---|---|"]
    verdicts = [architectures.judge(name) for name in architectures.NAMES]
    rows += [verdict.row for verdict in verdicts if verdict.kind != "not made"]
    missing = [verdict.name for verdict in verdicts if verdict.kind == "not made"]
    return "\n".join(rows) + f"\n\nNot judged: {', '.join(missing)}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the table into its document")
    given = parser.parse_args()
    fresh = table()
    if not given.write:
        print(fresh, end="")
        return 0
    before, begin, rest = DOCUMENT.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT} lacks the markers {BEGIN.strip()} and {END}")
    DOCUMENT.write_text(before + begin + fresh + end + after, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
