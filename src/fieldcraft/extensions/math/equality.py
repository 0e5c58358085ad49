"""Equality of the parsed values of two answers, exact wherever possible.

Two decimals, or a decimal and a number that is a finite decimal, such as 1 or 1/8, must be the
same: 0.9999999 does not equal 1. A decimal is an approximation only if the other number has no
finite decimal form, such as 1/3 or the root of 2: six digits after the decimal point must agree,
and six significant digits of a number below 1. Floating-point output of a program, with its 16 or
17 digits, may differ by a rounding error. Math-Verify itself would round everything to six digits.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import product
from typing import Any

from math_verify import verify
from sympy import Basic, Expr, Float, MatrixBase, Rational, UnevaluatedExpr, floor, log

from fieldcraft.extensions.math.units import Quantity

MATCHING_DIGITS = 6  # after the decimal point; significant digits for a number below 1
FLOAT_RELATIVE_ERROR = 1e-12  # relative error of floating-point results of a program
EXACT_RELATIVE_ERROR = (
    1e-25  # smallest relative difference between two different numbers of exact form
)
_EVALUATION_DIGITS, _VERIFY_DIGITS = 40, 15
_MAX_DECIMAL_PLACES = (
    12  # of a decimal that a number may be equal to, such as a sum of roots that cancel out
)
_MIN_PRINTED_DIGITS = (
    16  # minimum significant digits of a floating-point number, in contrast to a short decimal
)
_MAX_EXPONENT = 10_000  # largest exponent for which numbers are compared


def is_equivalent(golds: list[list[Any]], answers: list[list[Any]]) -> bool:
    """Return whether any parsed value of the gold answer equals any parsed value of the answer."""
    readings = product(golds, answers)
    return any(
        _is_equal(left, right) for gold, answer in readings for left, right in product(gold, answer)
    )


def _is_equal(gold: Any, answer: Any) -> bool:
    if isinstance(gold, Quantity) or isinstance(answer, Quantity):
        pairs = product(_candidate_values(gold, answer), _candidate_values(answer, gold))
        return _has_same_dimensions(gold, answer) and any(
            _is_equal(left, right) for left, right in pairs
        )
    if _is_number(gold) and _is_number(answer):
        return _is_same_number(gold, answer)
    shift = _leading_zeros(gold)
    return verify(
        _match_decimals(gold, answer),
        _match_decimals(answer, gold),
        float_rounding=MATCHING_DIGITS + shift,
        numeric_precision=_VERIFY_DIGITS + shift,
        timeout_seconds=None,
    )


# -- quantities --------------------------------------------------------------------------------


def _has_same_dimensions(gold: Any, answer: Any) -> bool:
    """Return whether two values have units of the same dimensions, or at least one has no unit."""
    if isinstance(gold, Quantity) and isinstance(answer, Quantity):
        return gold.unit.dimensions == answer.unit.dimensions
    return True


def _candidate_values(value: Any, other: Any) -> list[Any]:
    """Return the numbers that a value may represent when compared with another. If the other value
    has no unit, this is the bare number or, for a dimensionless unit such as 50 %, its numeric
    value."""
    if not isinstance(value, Quantity):
        return [value]
    if isinstance(other, Quantity):
        return [value.value if value.unit == other.unit else value.in_base_units]
    return [value.value] if value.unit.dimensions else [value.value, value.in_base_units]


# -- numbers -----------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    """Return whether a value is one real number. Percentages are left to Math-Verify."""
    if not isinstance(value, Expr) or value.has(UnevaluatedExpr) or not value.is_number:
        return False
    return bool(value.is_comparable and value.is_finite)


def _is_same_number(gold: Expr, answer: Expr) -> bool:
    left, right = _to_fractions(gold).doit(), _to_fractions(answer).doit()
    if left == right:
        return True
    left_size, right_size = left.evalf(_EVALUATION_DIGITS), right.evalf(_EVALUATION_DIGITS)
    difference, largest = abs(left_size - right_size), max(abs(left_size), abs(right_size))
    if (
        not (isinstance(left, Rational) and isinstance(right, Rational))
        and difference <= EXACT_RELATIVE_ERROR * largest
    ):
        return True
    if (
        _is_printed_float(gold) or _is_printed_float(answer)
    ) and difference <= FLOAT_RELATIVE_ERROR * largest:
        return True
    if _is_decimal(left) == _is_decimal(right):
        return False
    decimal, exact = (gold, right) if _is_decimal(left) else (answer, left)
    half = Rational(1, 2 * 10 ** (MATCHING_DIGITS + _leading_zeros(exact)))
    return decimal.has(Float) and bool(difference <= half)


def _to_fractions(value: Any) -> Any:
    """Return a value with its decimals replaced by the equivalent fractions."""
    return value.xreplace({number: Rational(str(number)) for number in value.atoms(Float)})


def _is_printed_float(value: Expr) -> bool:
    """Return whether a value contains a number with the precision of printed floating-point
    output."""
    return any(
        len(Decimal(repr(float(number))).as_tuple().digits) >= _MIN_PRINTED_DIGITS
        and Rational(repr(float(number))) == Rational(str(number))
        for number in value.atoms(Float)
    )


def _is_decimal(value: Expr) -> bool:
    """Return whether a number of exact form has a finite decimal form."""
    if isinstance(value, Rational):
        return 10 ** int(value.q).bit_length() % value.q == 0
    places = value.evalf(_EVALUATION_DIGITS) * 10**_MAX_DECIMAL_PLACES
    return bool(abs(places - places.round()) <= EXACT_RELATIVE_ERROR * abs(places))


def _match_decimals(value: Any, other: Any) -> Any:
    """Return a value with exact numbers in place of its decimals: each becomes the number of the
    other value that it approximates, or else the equivalent fraction."""
    if not isinstance(value, Basic | MatrixBase) or value.has(UnevaluatedExpr):
        return value
    exact_numbers = [number for number in _list_numbers(other) if not number.has(Float)]

    def match_decimal(number: Expr) -> Any:
        return next(
            (exact for exact in exact_numbers if _is_same_number(exact, number)),
            _to_fractions(number),
        )

    return value.xreplace({n: match_decimal(n) for n in _list_numbers(value) if n.has(Float)})


def _leading_zeros(value: Any) -> int:
    """Return the number of zeros between the decimal point and the first digit of the smallest
    number in a value."""
    sizes = (abs(number.evalf(_VERIFY_DIGITS)) for number in _list_numbers(value))
    exponents = [int(floor(log(size, 10))) + 1 for size in sizes if 0 < size < 1]
    return min(max(-min(exponents, default=0), 0), _MAX_EXPONENT)


def _list_numbers(value: Any) -> list[Expr]:
    """Return the numbers in a value that are not parts of other numbers."""
    if _is_comparable(value):
        return [value]
    if isinstance(value, MatrixBase):
        return [number for entry in value.flat() for number in _list_numbers(entry)]
    if isinstance(value, Basic):
        return [number for part in value.args for number in _list_numbers(part)]
    return []


def _is_comparable(value: Any) -> bool:
    return isinstance(value, Expr) and bool(value.is_number and value.is_comparable)
