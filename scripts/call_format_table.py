"""Print what the dialect `auto` does with the chat templates of model families.

python scripts/call_format_table.py            prints the table
python scripts/call_format_table.py --write    writes it into docs/lab-notes/call-formats.md
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "lab-notes" / "call-formats.md"
BEGIN, END = "<!-- call formats -->\n", "<!-- /call formats -->"
sys.path[:0] = [str(ROOT / "tests")]

checks: Any = import_module("call_format_checks")  # module of the tests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the table into its document")
    given = parser.parse_args()
    table = checks.make_table()
    if not given.write:
        print(table, end="")
        return 0
    before, begin, rest = DOCUMENT.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT} lacks the markers {BEGIN.strip()} and {END}")
    DOCUMENT.write_text(before + begin + table + end + after, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
