"""Assembly of one program from the Python blocks of an answer, without its usage examples.

The last block is the program if it defines everything that it uses. Otherwise it is preceded by the
nearest earlier blocks that define the rest, such as imports and functions. A last block that only
tests the program, or only calls a program that runs on its own, is an example.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

_BUILTIN = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
_FUTURE = re.compile(r"^from __future__ import [\w, ]+\n", re.MULTILINE)  # must be at the top
_STDIN_NAMES = frozenset({"input", "stdin", "raw_input"})
_DEFINITION_NODES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class ProgramPart:
    """A Python block that compiles."""

    code: str

    @cached_property
    def _tree(self) -> ast.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(self.code)

    @cached_property
    def _tables(self) -> list[symtable.SymbolTable]:
        def below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
            yield table
            for child in table.get_children():
                yield from below(child)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(below(symtable.symtable(self.code, "answer", "exec")))

    @cached_property
    def defined_names(self) -> frozenset[str]:
        """Names that the block binds at module level."""
        return frozenset(
            symbol.get_name()
            for table in self._tables
            for symbol in table.get_symbols()
            if (symbol.is_assigned() or symbol.is_imported())
            and (table is self._tables[0] or symbol.is_declared_global())
        )

    @cached_property
    def required_names(self) -> frozenset[str]:
        """Names that the block uses but does not define."""
        used = {
            symbol.get_name()
            for table in self._tables
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is self._tables[0] or symbol.is_global())
        }
        return frozenset(used - self.defined_names - _BUILTIN)

    @cached_property
    def runs_itself(self) -> bool:
        """Return whether the block prints or calls its own definitions at module level."""
        return any(
            (isinstance(node.func, ast.Name) and node.func.id in {"print", *self.defined_names})
            or (isinstance(node.func, ast.Attribute) and node.func.attr == "write")
            for node in _iter_module_level(self._tree)
            if isinstance(node, ast.Call)
        )

    @cached_property
    def reads_stdin(self) -> bool:
        """Return whether the block itself refers to standard input."""
        names = (getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(self._tree))
        return not _STDIN_NAMES.isdisjoint(names)

    @cached_property
    def definitions(self) -> frozenset[str]:
        """Functions and classes that the block defines."""
        return frozenset(
            node.name for node in self._tree.body if isinstance(node, _DEFINITION_NODES)
        )

    @cached_property
    def third_party_imports(self) -> frozenset[str]:
        """Names that the block imports from modules outside the standard library."""
        return frozenset(
            alias.name
            for node in ast.walk(self._tree)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").partition(".")[0] not in sys.stdlib_module_names
            for alias in node.names
        )


def join_program_parts(codes: Sequence[str]) -> str:
    """Return the program composed of Python blocks, each of which compiles."""
    parts = [ProgramPart(code) for code in codes]
    while len(parts) > 1 and _is_example(parts[-1], parts[:-1]):
        parts.pop()
    selected, missing_names = [parts[-1]], parts[-1].required_names
    for part in reversed(parts[:-1]):
        if part.defined_names & missing_names:
            selected.insert(0, part)
            missing_names = (missing_names - part.defined_names) | part.required_names
    if len(selected) == 1:
        return selected[0].code
    code = "\n\n".join(part.code.strip("\n") for part in selected) + "\n"
    return "".join([*_FUTURE.findall(code), _FUTURE.sub("", code)])


def _is_example(part: ProgramPart, previous: Sequence[ProgramPart]) -> bool:
    """Return whether a block only uses or tests definitions of earlier blocks."""
    definitions = frozenset().union(*(p.definitions for p in previous))
    if part.third_party_imports & definitions:
        return True
    is_test = bool(part.definitions) and all(
        name.lower().startswith("test") for name in part.definitions
    )
    used = [p for p in previous if p.defined_names & part.required_names]
    if not used or (part.definitions and not is_test):
        return False
    return is_test or (any(p.runs_itself for p in used) and not part.reads_stdin)


def _iter_module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a program that are outside functions and classes."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, _DEFINITION_NODES | ast.Lambda):
            yield node
            yield from _iter_module_level(node)
