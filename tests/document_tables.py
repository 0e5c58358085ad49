"""Scripts whose table stands in a document, between two comments with its name."""

import argparse
from collections.abc import Callable
from pathlib import Path


def run_table_script(
    description: str, make_table: Callable[[], str], document: Path, name: str
) -> int:
    """Print a table or, with --write, write it into its document. Return the exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--write", action="store_true", help="write the table into its document")
    given = parser.parse_args()
    table = make_table()
    if not given.write:
        print(table, end="")
        return 0
    opening, closing = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, begin, rest = document.read_text("utf-8").partition(opening)
    _, end, after = rest.partition(closing)
    if not begin or not end:
        raise ValueError(f"{document} lacks the markers {opening.strip()} and {closing}")
    document.write_text(before + begin + table + end + after, "utf-8")
    return 0
