"""Names that a Python module reads before it binds them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any


def find_names_read_first(tree: ast.Module) -> set[str]:
    """Return the names whose first use at module level, in the order of execution, reads them, such
    as `a` of `a = sorted(a)`. Bodies of functions run later and are skipped."""
    reader = _Reader()
    reader.visit(tree)
    return reader.read_first


class _Reader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.bound: set[str] = set()
        self.read_first: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.id)
        else:
            self.bound.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_all(node.value, *node.targets)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all(node.value, node.target if node.value else None)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id)
        self._visit_all(node.value, node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit_all(node.value, node.target)

    def visit_For(self, node: ast.For) -> None:
        self._visit_all(node.iter, node.target, *node.body, *node.orelse)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node: Any) -> None:
        self._visit_all(*node.decorator_list, *node.args.defaults, *node.args.kw_defaults)
        statements = [part for part in ast.walk(node) if isinstance(part, ast.Global)]
        self.bound |= {node.name, *(name for part in statements for name in part.names)}

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(*node.decorator_list, *node.bases, *node.keywords)
        self.bound.add(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all(*node.args.defaults, *node.args.kw_defaults)

    def visit_ListComp(self, node: Any) -> None:
        outside = set(self.bound)
        for part in node.generators:
            self._visit_all(part.iter, part.target, *part.ifs)
        if isinstance(node, ast.DictComp):
            self._visit_all(node.key, node.value)
        else:
            self._visit_all(node.elt)
        self.bound = outside  # the targets exist only inside

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._visit_all(node.type)
        self.bound |= {node.name} if node.name else set()
        self._visit_all(*node.body)

    def visit_MatchAs(self, node: Any) -> None:
        self.generic_visit(node)
        self.bound |= {node.name} if node.name else set()

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        self.bound |= {node.rest} if node.rest else set()

    def _read(self, name: str) -> None:
        if name not in self.bound:
            self.read_first.add(name)

    def _visit_all(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)


def imports_star(nodes: Iterable[ast.stmt]) -> bool:
    """Return whether one of the statements imports all names of a module."""
    return any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in nodes)
