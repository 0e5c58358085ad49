"""Print measures of the structure of the package as a Markdown table.

    python scripts/structure.py              # of src/fieldcraft
    python scripts/structure.py OLD NEW      # of two folders, such as one of another git worktree
    python scripts/structure.py --list       # also list what was found

The measures are computed from syntax trees. Only the number of loaded modules needs an import, in a
process with the folder's parent as PYTHONPATH. All lines of a file count. The kernel is everything
except `extensions/`. Short and loaded modules do not include `__init__.py`.

- An importer of a module is a module of the package that imports it, or a name from it, anywhere.
- An implementer of a protocol or abstract class inherits from it, or, for a protocol, has all its
  members by name, inherited ones included. Protocols and subclasses of implementers do not count,
  nor do functions that match a protocol with `__call__`. Classes are identified by name.
- A function that only checks has a name such as `check_x`, `require_x` or `x_problems`, or is a
  decorated validator.
- Cycles between folders are counted by breaking one after the other: of each cycle, the imports
  from one folder to the next are ignored in the search for more. Folders are those at the top, and
  each extension.
- A broad handler catches all errors or Exception. It re-raises if it contains `raise`.
"""

from __future__ import annotations

import argparse
import ast
import gc
import math
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

PACKAGE = Path("src/fieldcraft")
EXTENSIONS = "extensions"
LOADED = ("runs", "run")  # module whose imports are counted
SHORT_MODULE, SMALL_MODULE, SHORT_FUNCTION = 60, 110, 36  # lines
CHECK = re.compile(r"_?(check|require|validate|refuse)_|.*_problems$")
BROAD = {"Exception", "BaseException"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    tree: ast.Module
    lines: int


@dataclass(frozen=True)
class Measures:
    """Cells of a column by row title, and what was found by heading."""

    cells: dict[str, str]
    found: dict[str, list[str]]


def read_modules(folder: Path) -> dict[str, Module]:
    """Return the modules of a package by full name, packages as `fieldcraft.runs.__init__`."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text("utf-8")
        parts = path.relative_to(folder.parent).with_suffix("").parts
        modules[".".join(parts)] = Module(ast.parse(text), len(text.splitlines()))
    return modules


def find_imports(name: str, modules: Mapping[str, Module]) -> set[str]:
    """Return the modules of the package that a module imports. Imports are absolute."""

    def resolve(target: str) -> str | None:
        names = (target, f"{target}.__init__")
        return next((found for found in names if found in modules), None)

    found = set()
    for node in ast.walk(modules[name].tree):
        if isinstance(node, ast.Import):
            found |= {resolve(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            source = node.module
            found |= {resolve(f"{source}.{a.name}") or resolve(source) for a in node.names}
    return {target for target in found if target is not None} - {name}


def find_cycles(imports: Mapping[str, set[str]]) -> list[str]:
    """Return the cycles between folders, as `config -> data -> config`."""
    graph: dict[str, set[str]] = defaultdict(set)
    for name, targets in imports.items():
        folder = get_folder(name)
        graph[folder] |= set(map(get_folder, targets)) - {folder}
    cycles = []
    while True:
        try:
            TopologicalSorter({key: sorted(graph[key]) for key in sorted(graph)}).prepare()
        except CycleError as error:
            cycle = error.args[1][::-1]  # each folder imports the next one
            cycles.append(" -> ".join(cycle))
            graph[cycle[-2]].remove(cycle[-1])
        else:
            return cycles


def get_folder(name: str) -> str:
    """Return the top-level folder, or the extension, of a module, or the module outside of all."""
    parts = name.split(".")[1:]
    is_extension = parts[0] == EXTENSIONS and len(parts) > 1
    return ".".join(parts[:2]) if is_extension else parts[0]


def get_base_names(node: ast.ClassDef) -> set[str]:
    """Return the last part of the names of bases and metaclass: `Protocol` for
    `typing.Protocol[T]`."""
    bases = [*node.bases, *(keyword.value for keyword in node.keywords)]
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in bases}


def iter_members(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names of the methods and attributes that a class itself defines."""
    for inner in node.body:
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name
    for attribute in ast.walk(node):
        match attribute:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def find_implementers(classes: Mapping[str, ast.ClassDef]) -> dict[str, list[str]]:
    """Return the implementers of each protocol and abstract class."""
    bases = {name: get_base_names(node) for name, node in classes.items()}

    def find_ancestors(name: str) -> set[str]:
        return {name}.union(*(find_ancestors(base) for base in bases[name] & classes.keys()))

    ancestors = {name: find_ancestors(name) for name in classes}
    members = {
        name: {member for ancestor in ancestors[name] for member in iter_members(classes[ancestor])}
        for name in classes
    }
    protocols = {name for name in classes if "Protocol" in bases[name]}
    implementers = {}
    for abstract in (name for name in classes if bases[name] & {"Protocol", "ABC", "ABCMeta"}):
        matching = {
            name
            for name in classes.keys() - protocols - {abstract}
            if abstract in ancestors[name]
            or (abstract in protocols and members[abstract] <= members[name])
        }
        implementers[abstract] = sorted(
            name for name in matching if not (ancestors[name] - {name}) & matching
        )
    return implementers


def is_check(function: Function) -> bool:
    decorators = (ast.unparse(node) for node in function.decorator_list)
    return bool(CHECK.match(function.name)) or any("_validator" in name for name in decorators)


def is_hiding_handler(node: ast.AST) -> TypeGuard[ast.ExceptHandler]:
    """Return whether a node is a broad handler that does not re-raise."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    names = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else BROAD
    return bool(names & BROAD) and not any(isinstance(n, ast.Raise) for n in ast.walk(node))


def count_loaded_modules(folder: Path, modules: Mapping[str, Module]) -> int | None:
    """Return how many of the modules the import of LOADED loads; None if it is missing."""
    name = ".".join((folder.name, *LOADED))
    if name not in modules:
        return None
    command = [sys.executable, "-c", f"import sys, {name}\nprint(*sys.modules)"]
    environment = {**os.environ, "PYTHONPATH": str(folder.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return len(modules.keys() & done.stdout.split())


def measure(folder: Path) -> Measures:
    """Return the measures of the package in a folder."""
    folder = folder.resolve()
    modules = read_modules(folder)
    imports = {name: find_imports(name, modules) for name in modules}
    lines = {name: module.lines for name, module in modules.items()}
    short = [n for n in modules if lines[n] < SHORT_MODULE and not n.endswith("__init__")]
    kernel = [name for name in modules if name.split(".")[1] != EXTENSIONS]
    small = {
        name: importers[0]
        for name in modules
        if lines[name] <= SMALL_MODULE and not name.endswith("__")
        if len(importers := [other for other in modules if name in imports[other]]) == 1
    }
    nodes = [(name, node) for name in modules for node in ast.walk(modules[name].tree)]
    implementers = find_implementers({n.name: n for _, n in nodes if isinstance(n, ast.ClassDef)})
    single = {name: found[0] for name, found in implementers.items() if len(found) == 1}
    functions = [node for _, node in nodes if isinstance(node, Function)]
    lengths = sorted((node.end_lineno or 0) - node.lineno + 1 for node in functions)
    short_share = sum(length < SHORT_FUNCTION for length in lengths) / len(lengths)
    cycles = find_cycles(imports)
    handlers = [f"{name}, line {n.lineno}" for name, n in nodes if is_hiding_handler(n)]
    cells = {
        "modules": len(modules),
        "lines": sum(lines.values()),
        "top-level folders": len({name.split(".")[1] for name in modules if name.count(".") > 1}),
        "modules of the kernel": len(kernel),
        "lines of the kernel": sum(lines[name] for name in kernel),
        f"modules under {SHORT_MODULE} lines": len(short),
        f"modules of at most {SMALL_MODULE} lines with one importer": len(small),
        "protocols and abstract classes": len(implementers),
        "of these with one implementer": len(single),
        "functions that only check": sum(map(is_check, functions)),
        "functions": len(functions),
        f"functions below {SHORT_FUNCTION} lines": f"{short_share:.1%}",
        "lines of a function, 99th percentile": lengths[math.ceil(0.99 * len(lengths)) - 1],
        "lines of the longest function": lengths[-1],
        "import cycles between folders": len(cycles),
        f"modules loaded by {'.'.join(LOADED)}": count_loaded_modules(folder, modules),
        "broad handlers that do not re-raise": len(handlers),
    }
    found = {
        "small modules with one importer": [f"{m} {lines[m]} <- {small[m]}" for m in small],
        "protocols and abstract classes with one implementer": [
            f"{name} <- {only}" for name, only in single.items()
        ],
        "import cycles": cycles,
        "broad handlers that do not re-raise": handlers,
    }
    return Measures(
        {title: "" if cell is None else str(cell) for title, cell in cells.items()}, found
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="*", default=[PACKAGE])
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    for folder in given.folders:
        if not any(folder.rglob("*.py")):
            parser.error(f"{folder} contains no Python module: give the folder of a package")
    columns = [measure(folder) for folder in given.folders]
    print(f"| measure | {' | '.join(map(str, given.folders))} |")
    print("|---" * (1 + len(columns)) + "|")
    for title in columns[0].cells:
        print(f"| {title} | {' | '.join(column.cells[title] for column in columns)} |")
    if given.list:
        for folder, column in zip(given.folders, columns, strict=True):
            for heading, lines in column.found.items():
                print(f"\n{folder}: {heading}\n", *lines, sep="\n")


if __name__ == "__main__":
    gc.disable()  # Python 3.11 may raise SystemError if garbage is collected during parsing
    main()
