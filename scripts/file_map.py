"""Print the file map of docs/architecture.md: every module and the first line of its docstring.

python scripts/file_map.py            prints the table
python scripts/file_map.py --write    writes it between the markers of docs/architecture.md
python scripts/file_map.py --check    exits with 1 if the table there is stale
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fieldcraft"
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- files -->\n", "<!-- /files -->"


def file_map() -> str:
    """The table. Raises ValueError for a module whose docstring does not begin with a sentence."""
    rows = ["| file | what it is |", "|---|---|"]
    for path in sorted(PACKAGE.rglob("*.py"), key=lambda path: path.relative_to(PACKAGE).parts):
        text = path.read_text("utf-8")
        if path.name == "__init__.py" and not text.strip():
            continue
        name = path.relative_to(PACKAGE).as_posix()
        rows.append(f"| `{name}` | {first_line(name, text)} |")
    return "\n".join(rows) + "\n"


def first_line(name: str, text: str) -> str:
    """What a module is, without the full stop."""
    docstring = ast.get_docstring(ast.parse(text)) or ""
    line = docstring.partition("\n")[0]
    if not line.endswith("."):
        raise ValueError(f"{name}: the first line of its docstring must be a whole sentence")
    return line.removesuffix(".").replace("|", "\\|")


def with_map(document: str) -> str:
    """The document with the table as it is now. Raises ValueError where the markers are missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks the markers {BEGIN.strip()} and {END}")
    return before + begin + file_map() + end + after


def main(arguments: list[str]) -> int:
    if not arguments:
        print(file_map(), end="")
        return 0
    if arguments not in (["--write"], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    document = DOCUMENT.read_text("utf-8")
    fresh = with_map(document)
    if arguments == ["--write"]:
        DOCUMENT.write_text(fresh, "utf-8")
    elif document != fresh:
        print("the file map of docs/architecture.md is stale: run scripts/file_map.py --write")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
