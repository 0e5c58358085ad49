"""Conversion of notation that Math-Verify misreads: degrees in functions, matrices of programs."""

from __future__ import annotations

import re

_FUNCTION = re.compile(
    r"\\?(?<![A-Za-z])(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])[^$,;=<>]*", re.IGNORECASE
)
_DEGREES = re.compile(
    r"(?<![\w.])(?P<number>\d+(?:\.\d+)?|[A-Za-z])\s*(?:\^\s*\{?\s*\\circ(?![A-Za-z])\s*\}?|\u00b0"
    r"|\\degree(?![A-Za-z]))"
)

_ROW = r"\[[^\[\]]*\]"
_ROWS = rf"\[\s*{_ROW}(?:\s*,\s*{_ROW})*\s*,?\s*\]"
_MATRIX = re.compile(
    r"(?:(?:sympy|sp|np|numpy)\.)?(?:(?:Immutable)?(?:Dense|Sparse)?Matrix|array)"
    rf"\(\s*(?P<rows>{_ROWS}|{_ROW})\s*\)"
)
_NESTED = re.compile(rf"\s*(?P<rows>{_ROWS})\s*\.?\s*")
_RATIONAL = re.compile(r"Rational\(\s*(-?\d+)\s*,\s*(\d+)\s*\)")
_COMMA = re.compile(r",(?![^()]*\))")  # between entries, not inside a call


def degrees_to_radians(text: str) -> str:
    """Return a text in which degrees in the argument of a function are converted to radians."""
    return _FUNCTION.sub(lambda found: _DEGREES.sub(_to_radians, found[0]), text)


def _to_radians(match: re.Match[str]) -> str:
    integer, _, decimals = match["number"].partition(".")
    return rf" (\frac{{{integer}{decimals} \pi}}{{{180 * 10 ** len(decimals)}}}) "


def convert_matrices(text: str) -> str:
    """Return a text in which matrices as printed by sympy and numpy, and lists of lists, are
    LaTeX."""
    text = _MATRIX.sub(lambda found: _render_matrix(found["rows"]), text)
    found = _NESTED.fullmatch(text)
    return _render_matrix(found["rows"]) if found else text


def _render_matrix(source: str) -> str:
    """Return the LaTeX matrix of the rows printed by a program; one row of numbers becomes a
    column."""
    source = _RATIONAL.sub(r"\\frac{\1}{\2}", source)
    rows = [_COMMA.split(row[1:-1].strip().rstrip(",")) for row in re.findall(_ROW, source)]
    if not source[1:].lstrip().startswith("["):
        rows = [[entry] for entry in rows[0]]
    if len(set(map(len, rows))) > 1:
        return source
    lines = " \\\\ ".join(" & ".join(entry.strip() for entry in row) for row in rows)
    return rf"\begin{{pmatrix}}{lines}\end{{pmatrix}}"
