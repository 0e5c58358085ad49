"""Values on their way between the tests and the program under test, which are two processes.

What is plain data is copied, as JSON with a tag for each type. All else stays where it is and goes
as a number, by which the other process can name it. Nothing that is received is executed.
"""

from __future__ import annotations

import builtins
import datetime
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol

_EXACT = 2**53  # a larger integer is written in hexadecimal, which has no limit of digits
_NUMPY_KINDS = "biufcSUmM"  # dtypes without objects in them
_BASES: Any = (int, float, complex, str, bytes, bytearray, tuple, list, set, frozenset, dict)


class References(Protocol):
    """Names what is not copied."""

    def reference(self, value: object) -> list[Any]:
        """Return the JSON of a value that is not copied. Raises TypeError where it cannot be
        named."""
        ...

    def resolve(self, tag: str, parts: list[Any]) -> object:
        """Return what the JSON of `reference` stands for."""
        ...


# tag -> (type, its parts as values that can be encoded, the value of decoded parts)
_MADE_OF: dict[str, tuple[type, Callable[[Any], Sequence[Any]], Callable[..., Any]]] = {
    "list": (list, list, lambda *items: list(items)),
    "tuple": (tuple, list, lambda *items: items),
    "set": (set, list, lambda *items: set(items)),
    "frozenset": (frozenset, list, lambda *items: frozenset(items)),
    "dict": (dict, lambda v: [i for pair in v.items() for i in pair], lambda *i: dict(_pairs(i))),
    "Counter": (Counter, lambda v: [dict(v)], Counter),
    "OrderedDict": (OrderedDict, lambda v: [dict(v)], OrderedDict),
    "defaultdict": (defaultdict, lambda v: [dict(v)], lambda items: defaultdict(None, items)),
    "deque": (deque, lambda v: [list(v), v.maxlen], deque),
    "complex": (complex, lambda v: [v.real, v.imag], complex),
    "bytes": (bytes, lambda v: [v.hex()], bytes.fromhex),
    "bytearray": (bytearray, lambda v: [v.hex()], bytearray.fromhex),
    "range": (range, lambda v: [v.start, v.stop, v.step], range),
    "slice": (slice, lambda v: [v.start, v.stop, v.step], slice),
    "Decimal": (Decimal, lambda v: [str(v)], Decimal),
    "Fraction": (Fraction, lambda v: [v.numerator, v.denominator], Fraction),
    "date": (datetime.date, lambda v: [v.isoformat()], datetime.date.fromisoformat),
    "datetime": (datetime.datetime, lambda v: [v.isoformat()], datetime.datetime.fromisoformat),
    "time": (datetime.time, lambda v: [v.isoformat()], datetime.time.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda v: [v.days, v.seconds, v.microseconds],
        datetime.timedelta,
    ),
}
_TAGS = {kind: tag for tag, (kind, _, _) in _MADE_OF.items()}


def encode(value: Any, references: References) -> Any:
    """Encode a value as JSON. Raises TypeError where it can be neither copied nor named."""
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if abs(value) < _EXACT else ["int", hex(value)]
    if tag := _TAGS.get(kind):
        return [tag, *(encode(part, references) for part in _MADE_OF[tag][1](value))]
    if value is Ellipsis or value is NotImplemented:
        return ["constant", str(value)]
    if _is_built_in(value):
        return ["built-in", value.__name__]
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in _NUMPY_KINDS:
        shape = list(value.shape) if kind.__name__ == "ndarray" else None
        return ["numpy", value.dtype.str, shape, value.tobytes().hex()]
    return references.reference(value)


def decode(data: Any, references: References) -> Any:
    """Decode what `encode` wrote. Raises ValueError or TypeError for what `encode` does not
    write."""
    if not isinstance(data, list):
        return data
    tag, parts = data[0], data[1:]
    if tag in _MADE_OF:
        return _MADE_OF[tag][2](*(decode(part, references) for part in parts))
    if tag == "int":
        return int(parts[0], 16)
    if tag == "constant":
        return {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}[parts[0]]
    if tag == "numpy":
        return _array(*parts)
    return references.resolve(tag, parts)


def plain(value: Any) -> Any:
    """Return a value of a subclass of a type that is copied, as that type; otherwise the value."""
    for base in _BASES:
        if isinstance(value, base):
            return base(value)
    return value


def refresh(old: Any, new: Any) -> Any:
    """Put into a container what a copy of it has become, and return it; else the new value."""
    if type(old) is not type(new):
        return new
    if isinstance(old, list):
        kept = [refresh(a, b) for a, b in zip(old, new, strict=False)]
        old[:] = kept + new[len(kept) :]
    elif isinstance(old, dict):
        kept_items = {k: refresh(old[k], v) if k in old else v for k, v in new.items()}
        old.clear()
        old.update(kept_items)
    elif isinstance(old, set | deque):
        old.clear()
        getattr(old, "update" if isinstance(old, set) else "extend")(new)
    elif isinstance(old, bytearray):
        old[:] = new
    elif isinstance(old, tuple):
        for a, b in zip(old, new, strict=False):
            refresh(a, b)
    elif type(old).__module__ == "numpy" and type(old).__name__ == "ndarray":
        if old.shape != new.shape or old.dtype != new.dtype:
            return new
        old[...] = new
    else:
        return new
    return old


def built_in(name: str, also_functions: bool) -> Any:
    """Return a class of Python's own or, where the sender is trusted, a function.

    Raises ValueError for another.
    """
    found = getattr(builtins, name, None)
    if isinstance(found, type) or (also_functions and callable(found)):
        return found
    raise ValueError(f"{name} is no class")


def _is_built_in(value: Any) -> bool:
    wanted = isinstance(value, type | types.BuiltinFunctionType)
    return wanted and getattr(builtins, value.__name__, None) is value


def _pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _array(dtype: str, shape: list[int] | None, data: str) -> Any:
    import numpy

    flat = numpy.frombuffer(bytes.fromhex(data), dtype=numpy.dtype(dtype))
    return flat[0] if shape is None else flat.reshape(shape).copy()
