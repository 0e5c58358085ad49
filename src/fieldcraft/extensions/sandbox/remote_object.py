"""Proxies in the tests for objects of the program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldcraft.extensions.sandbox.rpc import TestPeer

# Operators that a program may apply to a value of the tests. Other operators would reveal the
# expected value to the program: `abs(f(2) - 4) < 1e-6`.
_SAFE_OPERATIONS = frozenset({"add", "mul", "pow", "matmul"})
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_get_peer = operator.attrgetter("_RemoteObject__side")


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
