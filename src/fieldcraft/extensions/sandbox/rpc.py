"""RPC between the tests and the program over a pipe: requests, replies, and their values."""

from __future__ import annotations

import copy
import json
import operator
import socket
import struct
from collections.abc import Callable, Iterator, KeysView
from typing import Any, ClassVar

from fieldcraft.extensions.sandbox import value_codec
from fieldcraft.extensions.sandbox.remote_object import RemoteObject

_HEAD = struct.Struct("!Q")
_STOP_EXCEPTIONS = (
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
)  # they would end a loop of tests


class PeerExitedError(BaseException):
    """The other process has exited. Not an `Exception`, because a test might catch one."""


class _RemoteFunction:
    """Function of the other process, which can only be called."""

    def __init__(self, peer: ProgramPeer, number: int) -> None:
        self.number = number
        self._peer = peer

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._peer.call(self, *arguments, **named)


class _RpcPeer:
    """Base class of both ends: objects exported by number, and the messages."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._exported: list[Any] = []
        self._export_numbers: dict[int, int] = {}

    def _export(self, value: object) -> int:
        if id(value) not in self._export_numbers:
            self._export_numbers[id(value)] = len(self._exported)
            self._exported.append(value)
        return self._export_numbers[id(value)]

    def _send(self, message: list[Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self._stream.sendall(_HEAD.pack(len(data)) + data)
        except OSError as error:
            raise PeerExitedError from error

    def _receive(self) -> Any:
        [size] = _HEAD.unpack(self._read(_HEAD.size))
        return json.loads(self._read(size))

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._stream.recv(min(size - len(data), 2**20))
            if not piece:
                raise PeerExitedError
            data += piece
        return bytes(data)

    def _call_peer(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> list[Any]:
        """Send a request, answer requests of the other end until its reply, and return the
        reply."""
        encoded = [value_codec.encode(value, self) for value in (arguments, named)]
        self._send(["ask", operation, *encoded])
        while (message := self._receive())[0] == "ask":
            self._send(self._handle_call(*message[1:]))
        if message[2] is not None:
            value_codec.update_in_place([arguments, named], value_codec.decode(message[2], self))
        return list(message)

    def _handle_call(self, operation: str, arguments: Any, named: Any) -> list[Any]:
        """Return ["value", value, arguments if they were changed in place], or ["error", ...]."""
        try:
            values = value_codec.decode(["list", arguments, named], self)
            before = value_codec.encode(values, self)
            value = value_codec.encode(self._execute(operation, *values), self)
            after = value_codec.encode(values, self)
            return ["value", value, None if after == before else after]
        except PeerExitedError:
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller
            parts = [value_codec.encode(part, self) for part in _split_error(error)]
            return ["error", parts, None]

    def _execute(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        raise NotImplementedError

    def encode_reference(self, value: object) -> list[Any]:
        raise NotImplementedError

    def resolve_reference(self, tag: str, parts: list[Any]) -> object:
        raise NotImplementedError


def _split_error(error: BaseException) -> tuple[type, list[Any], dict[str, Any]]:
    return type(error), list(error.args), dict(vars(error))


def _make_error(parts: list[Any]) -> BaseException:
    kind, arguments, attributes = parts
    error: BaseException = kind.__new__(kind, *arguments)
    error.args = tuple(arguments)
    vars(error).update(attributes)
    return error


class TestPeer(_RpcPeer):
    """End of the tests. It calls only functions that the tests have passed, and records whether a
    test has failed inside such a call, where the program could hide it."""

    __test__ = False

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(stream)
        self._program_exceptions: dict[int, Any] = {}  # exceptions of the program
        self.has_failed = False

    def request(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Run an operation in the program's process, and return its result.

        Raises the exception of the program, or PeerExitedError.
        """
        try:
            kind, content, _ = self._call_peer(
                operation, [*map(self._make_sendable, arguments)], named
            )
        except PeerExitedError:
            self.has_failed = True
            raise
        if kind == "value":
            return value_codec.decode(content, self)
        error = _make_error([value_codec.decode(part, self) for part in content])
        if isinstance(error, _STOP_EXCEPTIONS) and operation != "next":
            error = RuntimeError(f"the program raised {error!r}")
        raise error

    def _make_sendable(self, value: Any) -> Any:
        """Return a value, or a list in place of an iterator, such as a generator of the tests."""
        if type(value) is RemoteObject:
            return value
        return list(value) if isinstance(value, Iterator | KeysView) else value

    def _execute(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        function, *rest = arguments
        if operation != "call":
            raise TypeError("tests can only be called")
        try:
            return function(*rest, **named)
        except AssertionError:
            self.has_failed = True
            raise

    def encode_reference(self, value: object) -> list[Any]:
        if type(value) is RemoteObject:
            return ["yours", RemoteObject.get_number(value)]
        for known, exception in self._program_exceptions.items():
            if exception is value:
                return ["yours", known]
        if callable(value) and not isinstance(value, type):
            return ["mine", self._export(value)]
        raise TypeError(f"a test cannot give its {type(value).__name__} to the program")

    def resolve_reference(self, tag: str, parts: list[Any]) -> object:
        if tag == "mine":
            return RemoteObject(self, parts[0])
        if tag == "yours":
            return self._exported[parts[0]]
        if tag == "built-in":
            return value_codec.get_builtin(parts[0], allow_functions=False)
        if tag == "exception":
            return self._make_exception_class(*parts)
        raise ValueError(f"unknown tag {tag}")

    def _make_exception_class(self, number: int, name: str, *bases: Any) -> Any:
        """Return a local exception class, so that the tests can catch exceptions of the
        program."""
        if number not in self._program_exceptions:
            base_classes = tuple(value_codec.decode(base, self) for base in bases)
            self._program_exceptions[number] = type(name, base_classes, {})
        return self._program_exceptions[number]


class ProgramPeer(_RpcPeer):
    """End of the program."""

    _OPERATIONS: ClassVar[dict[str, Callable[..., Any]]] = {
        **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem", "index")},
        **{name: getattr(operator, name) for name in ("neg", "pos", "invert", "abs", "call")},
        **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
        **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv")},
        **{name: getattr(operator, name) for name in ("mod", "pow", "matmul", "and_", "or_")},
        **{name: getattr(operator, name) for name in ("xor", "lshift", "rshift")},
        **{f.__name__: f for f in (getattr, setattr, delattr, len, iter, next, hash, isinstance)},
        **{f.__name__: f for f in (bool, str, repr, format, int, float, complex, round, reversed)},
        **{"plain": value_codec.to_base_type, "copy": copy.copy, "deepcopy": copy.deepcopy},
        "enter": lambda value: type(value).__enter__(value),
        "exit": lambda value: type(value).__exit__(value, None, None, None),
    }

    def __init__(self, stream: socket.socket, variables: dict[str, Any]) -> None:
        super().__init__(stream)
        self._variables = variables

    def serve(self) -> None:
        """Answer requests until the tests have exited."""
        while True:
            try:
                message = self._receive()
            except PeerExitedError:
                return
            self._send(self._handle_call(*message[1:]))

    def call(self, function: _RemoteFunction, *arguments: Any, **named: Any) -> Any:
        """Call a function of the tests in their process. Raises its exception."""
        kind, content, _ = self._call_peer("call", [function, *arguments], named)
        if kind == "value":
            return value_codec.decode(content, self)
        raise _make_error([value_codec.decode(part, self) for part in content])

    def _execute(self, operation: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        if operation == "variable":
            if arguments[0] in self._variables:
                return self._variables[arguments[0]]
            raise KeyError(arguments[0])
        return self._OPERATIONS[operation](*arguments, **named)

    def encode_reference(self, value: object) -> list[Any]:
        if isinstance(value, _RemoteFunction):
            return ["yours", value.number]
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [value_codec.encode(base, self) for base in value.__bases__]
            return ["exception", self._export(value), value.__name__, *bases]
        return ["mine", self._export(value)]

    def resolve_reference(self, tag: str, parts: list[Any]) -> object:
        if tag == "mine":
            return _RemoteFunction(self, parts[0])
        if tag == "yours":
            return self._exported[parts[0]]
        if tag == "built-in":
            return value_codec.get_builtin(parts[0], allow_functions=True)
        raise ValueError(f"unknown tag {tag}")
