"""Codec for values that are sent between the tests and the program under test, two processes.

Plain data is copied, as JSON with a tag for each type. Other objects are not copied; they are sent
as a number by which the other process can refer to them. Received data is never executed.
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

_MAX_EXACT_INT = 2**53  # larger integers are written in hexadecimal, which has no limit on digits
_NUMPY_KINDS = "biufcSUmM"  # dtypes without objects in them
_BASE_TYPES: Any = (int, float, complex, str, bytes, bytearray, tuple, list, set, frozenset, dict)


class ReferenceTable(Protocol):
    """Table of references to objects that are not copied."""

    def encode_reference(self, value: object) -> list[Any]:
        """Return the JSON of a reference to a value. Raises TypeError if it cannot be
        referenced."""
        ...

    def resolve_reference(self, tag: str, parts: list[Any]) -> object:
        """Return the object of a reference made by `encode_reference`."""
        ...


# tag -> (type, its parts as values that can be encoded, the value of decoded parts)
_CODECS: dict[str, tuple[type, Callable[[Any], Sequence[Any]], Callable[..., Any]]] = {
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
_TAG_BY_TYPE = {kind: tag for tag, (kind, _, _) in _CODECS.items()}


def encode(value: Any, references: ReferenceTable) -> Any:
    """Encode a value as JSON. Raises TypeError if it can be neither copied nor referenced."""
    value_type = type(value)
    if value is None or value_type in (bool, str, float):
        return value
    if value_type is int:
        return value if abs(value) < _MAX_EXACT_INT else ["int", hex(value)]
    if tag := _TAG_BY_TYPE.get(value_type):
        return [tag, *(encode(part, references) for part in _CODECS[tag][1](value))]
    if value is Ellipsis or value is NotImplemented:
        return ["constant", str(value)]
    if _is_builtin(value):
        return ["built-in", value.__name__]
    if (
        value_type.__module__ == "numpy"
        and hasattr(value, "dtype")
        and value.dtype.kind in _NUMPY_KINDS
    ):
        is_array = any(base.__name__ == "ndarray" for base in value_type.__mro__)  # or a matrix
        shape = list(value.shape) if is_array else None
        return ["numpy", value.dtype.str, shape, value.tobytes().hex()]
    return references.encode_reference(value)


def decode(data: Any, references: ReferenceTable) -> Any:
    """Decode the output of `encode`. Raises ValueError or TypeError for other data."""
    if not isinstance(data, list):
        return data
    tag, parts = data[0], data[1:]
    if tag in _CODECS:
        return _CODECS[tag][2](*(decode(part, references) for part in parts))
    if tag == "int":
        return int(parts[0], 16)
    if tag == "constant":
        return {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}[parts[0]]
    if tag == "numpy":
        return _decode_array(*parts)
    return references.resolve_reference(tag, parts)


def to_base_type(value: Any) -> Any:
    """Convert a value of a subclass of a copied type to that type; return other values
    unchanged."""
    for base in _BASE_TYPES:
        if isinstance(value, base):
            # `str` would return the name of a member of an Enum, and not its text.
            return str.__str__(value) if base is str else base(value)
    return value


def update_in_place(old: Any, new: Any) -> Any:
    """Update a container in place from its changed copy, and return it; else return the new
    value."""
    if type(old) is not type(new):
        return new
    if isinstance(old, list):
        merged_list = [update_in_place(a, b) for a, b in zip(old, new, strict=False)]
        old[:] = merged_list + new[len(merged_list) :]
    elif isinstance(old, dict):
        merged_dict = {k: update_in_place(old[k], v) if k in old else v for k, v in new.items()}
        old.clear()
        old.update(merged_dict)
    elif isinstance(old, set | deque):
        old.clear()
        getattr(old, "update" if isinstance(old, set) else "extend")(new)
    elif isinstance(old, bytearray):
        old[:] = new
    elif isinstance(old, tuple):
        for a, b in zip(old, new, strict=False):
            update_in_place(a, b)
    elif type(old).__module__ == "numpy" and type(old).__name__ == "ndarray":
        if old.shape != new.shape or old.dtype != new.dtype:
            return new
        old[...] = new
    else:
        return new
    return old


def get_builtin(name: str, allow_functions: bool) -> Any:
    """Return a builtin class or, if `allow_functions`, a builtin function.

    Raises ValueError for other names.
    """
    found = getattr(builtins, name, None)
    if isinstance(found, type) or (allow_functions and callable(found)):
        return found
    raise ValueError(f"{name} is not a class")


def _is_builtin(value: Any) -> bool:
    is_class_or_function = isinstance(value, type | types.BuiltinFunctionType)
    return is_class_or_function and getattr(builtins, value.__name__, None) is value


def _pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _decode_array(dtype: str, shape: list[int] | None, data: str) -> Any:
    import numpy

    flat = numpy.frombuffer(bytes.fromhex(data), dtype=numpy.dtype(dtype))
    return flat[0] if shape is None else flat.reshape(shape).copy()
