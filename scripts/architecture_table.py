"""Print the verdicts on the causal architectures of transformers.

python scripts/architecture_table.py            prints the table
python scripts/architecture_table.py --write    writes it into docs/lab-notes/architectures.md

It takes some minutes, because a small model of each architecture is trained and sampled.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "lab-notes" / "architectures.md"
sys.path[:0] = [str(ROOT / "tests")]

architectures: Any = import_module("architectures")  # module of the tests
document_tables: Any = import_module("document_tables")


def table() -> str:
    """Return the rows of the architectures with a small model."""
    rows = ["| architecture | trained and sampled |", "|---|---|"]
    verdicts = [architectures.judge(name) for name in architectures.NAMES]
    rows += [verdict.row for verdict in verdicts if verdict.kind != "not made"]
    missing = [verdict.name for verdict in verdicts if verdict.kind == "not made"]
    return "\n".join(rows) + f"\n\nNot judged: {', '.join(missing)}.\n"


if __name__ == "__main__":
    description = __doc__.partition("\n")[0]
    raise SystemExit(
        document_tables.run_table_script(description, table, DOCUMENT, "architectures")
    )
