"""Syntax trees of source files, for tests of what code may contain."""

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the tree of a file.

    Python 3.11 may raise SystemError if garbage is collected during parsing.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"))
    finally:
        if collects:
            gc.enable()
