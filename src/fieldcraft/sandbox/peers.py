"""The two ends of the pipe between tests and the program: questions, answers, and their values."""

from __future__ import annotations

import copy
import json
import operator
import socket
import struct
from collections.abc import Callable, Iterator, KeysView
from typing import Any, ClassVar

from fieldcraft.sandbox import copies
from fieldcraft.sandbox.remote import RemoteObject

_HEAD = struct.Struct("!Q")
_SILENT_ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)  # they would end a loop of tests


class PeerGone(BaseException):
    """The other process has ended. It is no `Exception`, which a test might catch."""


class _Function:
    """A function of the other process, which can only be called."""

    def __init__(self, side: ProgramSide, number: int) -> None:
        self.number = number
        self._side = side

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._side.call(self, *arguments, **named)


class _Peer:
    """Common part of both ends: objects that the other one knows by number, and the talk."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._given: list[Any] = []
        self._numbers: dict[int, int] = {}

    def _mine(self, value: object) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._given)
            self._given.append(value)
        return self._numbers[id(value)]

    def _send(self, message: list[Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self._stream.sendall(_HEAD.pack(len(data)) + data)
        except OSError as error:
            raise PeerGone from error

    def _receive(self) -> Any:
        [size] = _HEAD.unpack(self._read(_HEAD.size))
        return json.loads(self._read(size))

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._stream.recv(min(size - len(data), 2**20))
            if not piece:
                raise PeerGone
            data += piece
        return bytes(data)

    def _question(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> list[Any]:
        """Ask, answer what the other end asks meanwhile, and return the answer."""
        encoded = [copies.encode(value, self) for value in (arguments, named)]
        self._send(["ask", operation, *encoded])
        while (message := self._receive())[0] == "ask":
            self._send(self._answer(*message[1:]))
        if message[2] is not None:
            copies.refresh([arguments, named], copies.decode(message[2], self))
        return list(message)

    def _answer(self, operation: str, arguments: Any, named: Any) -> list[Any]:
        """Return ["value", it, what the arguments have become if they have changed], or ["error",
        ...]."""
        try:
            given = copies.decode(["list", arguments, named], self)
            before = copies.encode(given, self)
            value = copies.encode(self._do(operation, *given), self)
            after = copies.encode(given, self)
            return ["value", value, None if after == before else after]
        except PeerGone:
            raise
        except BaseException as error:  # noqa: BLE001 - it is the asker's
            kept = [copies.encode(part, self) for part in _parts_of(error)]
            return ["error", kept, None]

    def _do(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        raise NotImplementedError

    def reference(self, value: object) -> list[Any]:
        raise NotImplementedError

    def resolve(self, tag: str, parts: list[Any]) -> object:
        raise NotImplementedError


def _parts_of(error: BaseException) -> tuple[type, list[Any], dict[str, Any]]:
    return type(error), list(error.args), dict(vars(error))


def _error(parts: list[Any]) -> BaseException:
    kind, arguments, attributes = parts
    error: BaseException = kind.__new__(kind, *arguments)
    error.args = tuple(arguments)
    vars(error).update(attributes)
    return error


class TestSide(_Peer):
    """The end of the tests. It calls only what the tests have handed over, and knows whether a test
    has failed inside of such a call, where the program could hide it."""

    __test__ = False

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(stream)
        self._known: dict[int, Any] = {}  # exceptions of the program
        self.failed = False

    def ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Let the program's process do something, and return what comes of it.

        Raises what the program raises, or PeerGone.
        """
        try:
            kind, content, _ = self._question(operation, [*map(self._copied, arguments)], named)
        except PeerGone:
            self.failed = True
            raise
        if kind == "value":
            return copies.decode(content, self)
        error = _error([copies.decode(part, self) for part in content])
        if isinstance(error, _SILENT_ENDS) and operation != "next":
            error = RuntimeError(f"the program raised {error!r}")
        raise error

    def _copied(self, value: Any) -> Any:
        """Return a value, or a list in place of one that can only be gone through, such as a
        generator of the tests."""
        if type(value) is RemoteObject:
            return value
        return list(value) if isinstance(value, Iterator | KeysView) else value

    def _do(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        function, *rest = arguments
        if operation != "call":
            raise TypeError("tests can only be called")
        try:
            return function(*rest, **named)
        except AssertionError:
            self.failed = True
            raise

    def reference(self, value: object) -> list[Any]:
        if type(value) is RemoteObject:
            return ["yours", RemoteObject.number_of(value)]
        for known, exception in self._known.items():
            if exception is value:
                return ["yours", known]
        if callable(value) and not isinstance(value, type):
            return ["mine", self._mine(value)]
        raise TypeError(f"a test cannot give its {type(value).__name__} to the program")

    def resolve(self, tag: str, parts: list[Any]) -> object:
        if tag == "mine":
            return RemoteObject(self, parts[0])
        if tag == "yours":
            return self._given[parts[0]]
        if tag == "built-in":
            return copies.built_in(parts[0], also_functions=False)
        if tag == "exception":
            return self._exception(*parts)
        raise ValueError(f"unknown tag {tag}")

    def _exception(self, number: int, name: str, *bases: Any) -> Any:
        """Return a class of the tests' own, so that they can catch what the program raises."""
        if number not in self._known:
            made = tuple(copies.decode(base, self) for base in bases)
            self._known[number] = type(name, made, {})
        return self._known[number]


class ProgramSide(_Peer):
    """The end of the program."""

    _OPERATIONS: ClassVar[dict[str, Callable[..., Any]]] = {
        **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem", "index")},
        **{name: getattr(operator, name) for name in ("neg", "pos", "invert", "abs", "call")},
        **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
        **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv")},
        **{name: getattr(operator, name) for name in ("mod", "pow", "matmul", "and_", "or_")},
        **{name: getattr(operator, name) for name in ("xor", "lshift", "rshift")},
        **{f.__name__: f for f in (getattr, setattr, delattr, len, iter, next, hash, isinstance)},
        **{f.__name__: f for f in (bool, str, repr, format, int, float, complex, round, reversed)},
        **{"plain": copies.plain, "copy": copy.copy, "deepcopy": copy.deepcopy},
        "enter": lambda value: type(value).__enter__(value),
        "exit": lambda value: type(value).__exit__(value, None, None, None),
    }

    def __init__(self, stream: socket.socket, variables: dict[str, Any]) -> None:
        super().__init__(stream)
        self._variables = variables

    def serve(self) -> None:
        """Answer until the tests have ended."""
        while True:
            try:
                message = self._receive()
            except PeerGone:
                return
            self._send(self._answer(*message[1:]))

    def call(self, function: _Function, *arguments: Any, **named: Any) -> Any:
        """Let the tests call a function of theirs. Raises what it raises."""
        kind, content, _ = self._question("call", [function, *arguments], named)
        if kind == "value":
            return copies.decode(content, self)
        raise _error([copies.decode(part, self) for part in content])

    def _do(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        if operation == "variable":
            if arguments[0] in self._variables:
                return self._variables[arguments[0]]
            raise KeyError(arguments[0])
        return self._OPERATIONS[operation](*arguments, **named)

    def reference(self, value: object) -> list[Any]:
        if isinstance(value, _Function):
            return ["yours", value.number]
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [copies.encode(base, self) for base in value.__bases__]
            return ["exception", self._mine(value), value.__name__, *bases]
        return ["mine", self._mine(value)]

    def resolve(self, tag: str, parts: list[Any]) -> object:
        if tag == "mine":
            return _Function(self, parts[0])
        if tag == "yours":
            return self._given[parts[0]]
        if tag == "built-in":
            return copies.built_in(parts[0], also_functions=True)
        raise ValueError(f"unknown tag {tag}")
