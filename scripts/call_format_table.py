"""Print what the dialect `auto` does with the chat templates of model families.

python scripts/call_format_table.py            prints the table
python scripts/call_format_table.py --write    writes it into docs/lab-notes/call-formats.md
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "lab-notes" / "call-formats.md"
sys.path[:0] = [str(ROOT / "tests")]

checks: Any = import_module("call_format_checks")  # module of the tests
document_tables: Any = import_module("document_tables")


if __name__ == "__main__":
    description = __doc__.partition("\n")[0]
    raise SystemExit(
        document_tables.run_table_script(description, checks.make_table, DOCUMENT, "call formats")
    )
