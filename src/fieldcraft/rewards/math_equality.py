"""Equality of what was read from two answers: exact, or relative to the size of the numbers.

Math-Verify rounds to six digits behind the point, so that small numbers are all the same. Here two
exact numbers are equal where they are the same. Where one has a decimal point, six significant
digits must agree and six digits behind the point, or twelve significant ones.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from math_verify import verify
from sympy import Basic, Expr, Float, MatrixBase, Rational, UnevaluatedExpr, floor, log

DIGITS = 6  # behind the point, and significant ones of a number below 1
FLOAT = 1e-12  # relative error of what a program computes in floating point
EXACT = 1e-25  # relative difference that two different numbers of exact form do not fall below
_EVALUATED, _PRECISION = 40, 15
_SMALLEST = 10_000  # exponent up to which numbers are told apart


def equal(golds: list[list[Any]], answers: list[list[Any]]) -> bool:
    """Tell whether any reading of the gold answer equals any of the answer."""
    readings = product(golds, answers)
    return any(
        _same(one, other) for gold, answer in readings for one, other in product(gold, answer)
    )


def _same(gold: Any, answer: Any) -> bool:
    if _is_number(gold) and _is_number(answer):
        return _same_number(gold, answer)
    shift = _leading_zeros(gold)
    return verify(
        gold,
        answer,
        float_rounding=DIGITS + shift,
        numeric_precision=_PRECISION + shift,
        timeout_seconds=None,
    )


def _is_number(value: Any) -> bool:
    """Tell whether a value is one real number. A percentage is left to Math-Verify."""
    if not isinstance(value, Expr) or value.has(UnevaluatedExpr) or not value.is_number:
        return False
    return bool(value.is_comparable and value.is_finite)


def _same_number(gold: Expr, answer: Expr) -> bool:
    one, other = gold.doit(), answer.doit()
    if isinstance(one, Rational) and isinstance(other, Rational):
        return bool(one == other)
    size, other_size = one.evalf(_EVALUATED), other.evalf(_EVALUATED)
    apart, largest = abs(size - other_size), max(abs(size), abs(other_size))
    if not (one.has(Float) or other.has(Float)):
        return bool(apart <= EXACT * largest)
    half = Rational(1, 2 * 10 ** (DIGITS + _leading_zeros(one)))
    if apart <= FLOAT * largest:
        return True
    return bool(apart <= half and one != 0 and other != 0)


def _leading_zeros(value: Any) -> int:
    """Number of zeros that stand between the point and the first digit of the smallest number in a
    value."""
    sizes = (abs(number.evalf(_PRECISION)) for number in _numbers(value))
    exponents = [int(floor(log(size, 10))) + 1 for size in sizes if 0 < size < 1]
    return min(max(-min(exponents, default=0), 0), _SMALLEST)


def _numbers(value: Any) -> list[Expr]:
    """The numbers in a value that are no parts of other numbers."""
    if _is_comparable(value):
        return [value]
    if isinstance(value, MatrixBase):
        return [number for entry in value.flat() for number in _numbers(entry)]
    if isinstance(value, Basic):
        return [number for part in value.args for number in _numbers(part)]
    return []


def _is_comparable(value: Any) -> bool:
    return isinstance(value, Expr) and bool(value.is_number and value.is_comparable)
