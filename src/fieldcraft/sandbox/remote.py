"""Objects that stand in the tests for objects of the program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldcraft.sandbox.peers import TestSide

# Operators that a program may be asked about beside a value of the tests. With the others a test
# tells the program what it expects: `abs(f(2) - 4) < 1e-6`.
_HARMLESS = frozenset({"add", "mul", "pow", "matmul"})
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_side = operator.attrgetter("_RemoteObject__side")


class RemoteObject:
    """Object that asks the program's process for attributes, items, calls and conversions.

    Compared with a value of the tests, an object is equal only where the program copies it as plain
    data, and that comparison is made here. Between two objects of the program, it is asked.
    """

    __slots__ = ("__number", "__side")

    def __init__(self, side: TestSide, number: int) -> None:
        object.__setattr__(self, "_RemoteObject__side", side)
        object.__setattr__(self, "_RemoteObject__number", number)

    @staticmethod
    def number_of(remote: RemoteObject) -> int:
        """Return the number by which the program's process knows a remote object."""
        number: int = object.__getattribute__(remote, "_RemoteObject__number")
        return number

    def __getattr__(self, name: str) -> Any:
        # Libraries look for special names, and would take a pointer into memory by them.
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return _side(self).ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _side(self).ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        _side(self).ask("delattr", self, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _side(self).ask("call", self, *arguments, **named)

    def __exit__(self, *raised: object) -> None:
        """Leave the object's block, and hide nothing that was raised."""
        _side(self).ask("exit", self)

    def __contains__(self, value: Any) -> bool:
        plain = _plain(self)
        if not isinstance(plain, RemoteObject):
            return value in plain
        return any(item is value or item == value for item in _items(self))

    def __instancecheck__(self, value: Any) -> bool:
        return (
            isinstance(value, RemoteObject) and _side(self).ask("isinstance", value, self) is True
        )


def _plain(remote: RemoteObject) -> Any:
    """Return a copy where the object is plain data but for its class, else the object."""
    return _side(remote).ask("plain", remote)


def _items(remote: RemoteObject) -> Iterator[Any]:
    items: Iterator[Any] = _side(remote).ask("iter", remote)
    return items


def _forwarded(operation: str) -> Callable[..., Any]:
    return lambda self, *arguments: _side(self).ask(operation, self, *arguments)


def _binary(operation: str, reflected: bool) -> Callable[[RemoteObject, Any], Any]:
    function: Callable[[Any, Any], Any] = getattr(operator, operation)

    def apply(self: RemoteObject, other: Any) -> Any:
        if isinstance(other, RemoteObject) or operation in _HARMLESS:
            pair = (other, self) if reflected else (self, other)
            said = _side(self).ask(operation, *pair)
            return said is True if operation in _COMPARISONS else said
        plain = _plain(self)
        if not isinstance(plain, RemoteObject):
            return function(other, plain) if reflected else function(plain, other)
        if operation in ("eq", "ne"):
            return operation == "ne"
        raise TypeError(f"an object of the program cannot be used with {operation} and a value")

    return apply


def _define() -> None:
    """Give the class its special methods, which Python looks for there only."""
    for name in ("len", "bool", "iter", "next", "hash", "str", "repr", "format", "int", "float"):
        setattr(RemoteObject, f"__{name}__", _forwarded(name))
    for name in ("complex", "index", "abs", "neg", "pos", "invert", "round", "reversed", "enter"):
        setattr(RemoteObject, f"__{name}__", _forwarded(name))
    for name in ("getitem", "setitem", "delitem", "copy"):
        setattr(RemoteObject, f"__{name}__", _forwarded(name))
    RemoteObject.__deepcopy__ = lambda self, memo: _side(self).ask("deepcopy", self)  # type: ignore[attr-defined]
    for name in _COMPARISONS:
        setattr(RemoteObject, f"__{name}__", _binary(name, False))
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
        setattr(RemoteObject, f"__{name}__", _binary(name, False))
        setattr(RemoteObject, f"__r{name}__", _binary(name, True))
    for name in ("and", "or", "xor", "lshift", "rshift"):
        operation = f"{name}_" if name in ("and", "or") else name
        setattr(RemoteObject, f"__{name}__", _binary(operation, False))
        setattr(RemoteObject, f"__r{name}__", _binary(operation, True))


_define()
