"""Tests that run in a separate process from the program under test.

The test process forks the program's process before it receives the tests, and does not share the
socket over which it reports the verdict. The tests access the program over a pipe: calls run in the
program's process, plain data is returned as copies, and other objects as a number, which
`RemoteObject` represents in the tests. So comparisons are made by Python itself, on data.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import socket
import symtable
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from fieldcraft.extensions.sandbox.rpc import PeerExitedError, ProgramPeer, TestPeer

TESTS_FILENAME = "<tests>"
_MODULE_ALIASES = {"np": "numpy"}


Execute = Callable[[], dict[str, Any] | None]


def run_isolated_tests(
    execute: Execute,
    drop_secrets: Callable[[], None],
    receive_tests: Callable[[], dict[str, str]],
) -> int:
    """Run a program and its tests. Return 0 if all tests have passed, else 1.

    Args:
        execute: function that runs the program and returns its variables, or None if it failed.
        drop_secrets: function that drops resources that the program must not have.
        receive_tests: function that returns the arguments of `run_tests`; called after the fork.
    """
    tests_socket, program_socket = socket.socketpair()
    sys.stdout.flush()
    if os.fork() == 0:
        drop_secrets()
        tests_socket.close()
        _run_program_process(program_socket, execute)
    program_socket.close()
    # Files that the program writes must not be imported here.
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    return run_tests(TestPeer(tests_socket), **receive_tests())


def _run_program_process(
    stream: socket.socket, execute: Callable[[], dict[str, Any] | None]
) -> NoReturn:
    try:
        variables = execute()
        sys.stdout.flush()
        if variables is not None:
            ProgramPeer(stream, variables).serve()
    finally:
        os._exit(1)


def run_tests(peer: TestPeer, imports: str, tests: str) -> int:
    """Run the tests. Return 0 if they run to their end, else 1 after a traceback on stderr.

    Args:
        peer: connection to the program.
        imports: Python code that the tests may rely on.
        tests: Python code that raises an error if the program is wrong.
    """
    try:
        peer.request("bool", True)  # answered after the program has run
        tree = ast.parse(tests, TESTS_FILENAME)
        imported: dict[str, Any] = {}
        exec(compile(imports, TESTS_FILENAME, "exec"), imported)
        names = FallbackNamespace(peer, imported, tests, tree)
        exec(compile(tree, TESTS_FILENAME, "exec"), names)
    except PeerExitedError:
        os.write(2, b"The program has ended before its tests.\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - any exception fails the test
        os.write(2, "".join(traceback.format_exception(error)).encode("utf-8", "replace"))
        return 1
    return 1 if peer.has_failed else 0


class FallbackNamespace(dict[str, Any]):
    """Variables of tests. A name that they use and do not bind refers to the program, unless it is
    a builtin or imported for them. If they use no other name, for example if the function under
    test is called `sum`, builtin and imported names refer to the program, too."""

    def __init__(self, peer: TestPeer, imported: dict[str, Any], tests: str, tree: ast.AST) -> None:
        super().__init__(imported, __name__="__main__")
        self._peer = peer
        used = _find_global_names(symtable.symtable(tests, TESTS_FILENAME, "exec"))
        modules = _find_modules(tree) & used
        helpers = {*vars(builtins), *imported, *modules}
        self._program_names = (used - helpers) or (used & helpers)
        for name in self._program_names:
            self.pop(name, None)
        for name in modules - self._program_names - imported.keys():
            self[name] = importlib.import_module(_MODULE_ALIASES.get(name, name))

    def __missing__(self, name: str) -> Any:
        if name not in self._program_names:
            raise KeyError(name)
        return self._peer.request("variable", name)

    def __contains__(self, name: object) -> bool:
        """Return whether a name can be found, for tests that inspect `globals()`."""
        try:
            self[str(name)]
        except KeyError:
            return False
        return True


def _find_global_names(table: symtable.SymbolTable) -> set[str]:
    """Return the global names that tests read and never import or define at module level."""
    top = table.get_type() == "module"
    found = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced()
        and (not symbol.is_assigned() and not symbol.is_imported() if top else symbol.is_global())
    }
    for child in table.get_children():
        found |= _find_global_names(child)
    if top:
        found -= {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    return found


def _find_modules(tree: ast.AST) -> set[str]:
    """Return the names of standard modules of which tests use only attributes."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bases = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    non_base_names = {node.id for node in names if id(node) not in bases}
    module_names = sys.stdlib_module_names | _MODULE_ALIASES.keys()
    return {node.id for node in names if node.id in module_names} - non_base_names
