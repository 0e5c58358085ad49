"""RPC between the tests and the program over a pipe: requests, replies, and their values.

In the tests, proxies stand for objects of the program.
"""

from __future__ import annotations

import copy
import json
import operator
import socket
import struct
from collections.abc import Callable, Iterator, KeysView
from typing import Any, ClassVar

from fieldcraft.extensions.sandbox import value_codec

_HEAD = struct.Struct("!Q")
_STOP_EXCEPTIONS = (
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
)  # they would end a loop of tests
# Operators that a program may apply to a value of the tests. Other operators would reveal the
# expected value to the program: `abs(f(2) - 4) < 1e-6`.
_SAFE_OPERATIONS = frozenset({"add", "mul", "pow", "matmul"})
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_get_peer = operator.attrgetter("_RemoteObject__side")


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


class RemoteObject:
    """Proxy that forwards attributes, items, calls and conversions to the program's process.

    A comparison with a value of the tests is made in this process, and is true only if the program
    copies the object as plain data. A comparison of two objects of the program is made by the
    program.
    """

    __slots__ = ("__number", "__side")

    def __init__(self, peer: TestPeer, number: int) -> None:
        object.__setattr__(self, "_RemoteObject__side", peer)
        object.__setattr__(self, "_RemoteObject__number", number)

    @staticmethod
    def get_number(remote: RemoteObject) -> int:
        """Return the number of a remote object in the program's process."""
        number: int = object.__getattribute__(remote, "_RemoteObject__number")
        return number

    def __getattr__(self, name: str) -> Any:
        # Libraries look up special names, and could obtain a pointer into memory from them.
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return _get_peer(self).request("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _get_peer(self).request("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        _get_peer(self).request("delattr", self, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _get_peer(self).request("call", self, *arguments, **named)

    def __exit__(self, *raised: object) -> None:
        """Exit the object's context, without suppressing exceptions."""
        _get_peer(self).request("exit", self)

    def __contains__(self, value: Any) -> bool:
        plain = _fetch_plain(self)
        if not isinstance(plain, RemoteObject):
            return value in plain
        return any(item is value or item == value for item in _iterate_items(self))

    def __instancecheck__(self, value: Any) -> bool:
        return (
            isinstance(value, RemoteObject)
            and _get_peer(self).request("isinstance", value, self) is True
        )


def _fetch_plain(remote: RemoteObject) -> Any:
    """Return a copy if the object is plain data apart from its class, else the object."""
    return _get_peer(remote).request("plain", remote)


def _iterate_items(remote: RemoteObject) -> Iterator[Any]:
    items: Iterator[Any] = _get_peer(remote).request("iter", remote)
    return items


def _make_forwarder(operation: str) -> Callable[..., Any]:
    return lambda self, *arguments: _get_peer(self).request(operation, self, *arguments)


def _make_binary_method(operation: str, is_reflected: bool) -> Callable[[RemoteObject, Any], Any]:
    function: Callable[[Any, Any], Any] = getattr(operator, operation)

    def apply(self: RemoteObject, other: Any) -> Any:
        if isinstance(other, RemoteObject) or operation in _SAFE_OPERATIONS:
            pair = (other, self) if is_reflected else (self, other)
            result = _get_peer(self).request(operation, *pair)
            return result is True if operation in _COMPARISONS else result
        plain = _fetch_plain(self)
        if not isinstance(plain, RemoteObject):
            return function(other, plain) if is_reflected else function(plain, other)
        if operation in ("eq", "ne"):
            return operation == "ne"
        raise TypeError(f"an object of the program cannot be used with {operation} and a value")

    return apply


def _define_special_methods() -> None:
    """Add the special methods to the class, because Python looks them up only there."""
    for name in ("len", "bool", "iter", "next", "hash", "str", "repr", "format", "int", "float"):
        setattr(RemoteObject, f"__{name}__", _make_forwarder(name))
    for name in ("complex", "index", "abs", "neg", "pos", "invert", "round", "reversed", "enter"):
        setattr(RemoteObject, f"__{name}__", _make_forwarder(name))
    for name in ("getitem", "setitem", "delitem", "copy"):
        setattr(RemoteObject, f"__{name}__", _make_forwarder(name))
    RemoteObject.__deepcopy__ = lambda self, memo: _get_peer(self).request("deepcopy", self)  # type: ignore[attr-defined]
    for name in _COMPARISONS:
        setattr(RemoteObject, f"__{name}__", _make_binary_method(name, False))
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
        setattr(RemoteObject, f"__{name}__", _make_binary_method(name, False))
        setattr(RemoteObject, f"__r{name}__", _make_binary_method(name, True))
    for name in ("and", "or", "xor", "lshift", "rshift"):
        operation = f"{name}_" if name in ("and", "or") else name
        setattr(RemoteObject, f"__{name}__", _make_binary_method(operation, False))
        setattr(RemoteObject, f"__r{name}__", _make_binary_method(operation, True))


_define_special_methods()
