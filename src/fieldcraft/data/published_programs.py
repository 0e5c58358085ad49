"""KodCode's questions, whose tests are a pytest file, and CodeContests' questions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from fieldcraft.data.literals import parse_value
from fieldcraft.data.program_tests import STDIN_TESTS_KEY, UNIT_TESTS_KEY, Metadata, make_stdin_test
from fieldcraft.types import UserError

PROGRAM_MODULE = (
    "solution"  # the name under which pytest files import the program; here its names are global
)


def parse_kodcode_question(text: str, test: str, info: Any) -> tuple[str, Metadata]:
    """Return a question of KodCode with the declarations of its functions, which the tests call.
    Raises UserError or SyntaxError for tests that need pytest, which is not supported."""
    module = ast.parse(test)
    calls = "".join(f"{name}()\n" for name in _find_test_functions(module))
    if not calls:
        raise UserError("no function of the tests is called test_...; write them as 'unit_tests'.")
    listed = parse_value(info) if isinstance(info, str) else info
    functions = listed if isinstance(listed, list) else []
    declarations = [f.get("function_declaration") for f in functions if isinstance(f, Mapping)]
    declaration_text = "\n".join(filter(None, declarations))
    question = (
        f"{text.strip()}\n\nThe program must define:\n\n{declaration_text}"
        if declaration_text
        else text
    )
    tests = ast.unparse(ast.fix_missing_locations(_ProgramImportRemover(module).visit(module)))
    return question, {UNIT_TESTS_KEY: [f"{tests}\n\n{calls}"]}


class _ProgramImportRemover(ast.NodeTransformer):
    """Transformer that removes imports of the program, because the tests run in its namespace:
    `s.double` after `import solution as s` becomes `double`, and aliases of `from` are
    assigned."""

    def __init__(self, module: ast.Module) -> None:
        imports = [node for node in ast.walk(module) if isinstance(node, ast.Import)]
        named = [alias for node in imports for alias in node.names if alias.name == PROGRAM_MODULE]
        self._modules = {alias.asname or alias.name for alias in named}

    def visit_Import(self, node: ast.Import) -> ast.AST:
        others = [alias for alias in node.names if alias.name != PROGRAM_MODULE]
        return ast.Import(others) if others else ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.stmt]:
        if node.module != PROGRAM_MODULE:
            return node
        named = [f"{alias.asname} = {alias.name}" for alias in node.names if alias.asname]
        return ast.parse("\n".join(named) or "pass").body

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self._modules:
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._modules:
            raise UserError("the tests use the program as a module; write them as 'unit_tests'.")
        return node


def _find_test_functions(module: ast.Module) -> Iterator[str]:
    """Yield the names of the test functions."""
    for node in ast.walk(module):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        if any(name.split(".")[0] in ("pytest", "unittest") for name in names):
            raise UserError("the tests need pytest or unittest; write them as 'unit_tests'.")
    for statement in module.body:
        match statement:
            case ast.FunctionDef(name=name, args=ast.arguments(args=[])) if name.startswith("test"):
                yield name
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ) if name.lower().startswith("test"):
                raise UserError(f"only pytest runs '{name}'; write it as 'unit_tests'.")


def parse_code_contests_question(text: str, record: Mapping[str, Any]) -> tuple[str, Metadata]:
    """Return a question of CodeContests with its tests, public ones first. Raises UserError or
    ValueError for a question about a picture, and for programs that read and write files."""
    if "<image>" in text:
        raise UserError("the question is about a picture; remove the record.")
    if record.get("input_file") or record.get("output_file"):
        raise UserError("the program reads and writes files, which is not supported; remove it.")
    tests: list[dict[str, str]] = []
    for key in ("public_tests", "private_tests", "generated_tests"):
        if group := record.get(key):
            pairs = zip(group["input"], group["output"], strict=True)
            tests += [make_stdin_test(given, expected) for given, expected in pairs]
    return text, {STDIN_TESTS_KEY: tests}
