"""Parsing of mathematics in an answer with Math-Verify, in every plausible interpretation.

Notation that Math-Verify misreads or parses only partially is first rewritten as LaTeX: numbers in
Python notation, mixed numbers, powers with `**`, degrees in the argument of a function, matrices as
programs print them. A text that can be parsed only partially is treated as a string, which equals
only itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from math_verify import LatexExtractionConfig, parse
from sympy import Basic

from fieldcraft.extensions.math.quantities import (
    convert_number_words,
    extract_stated_value,
    split_unit,
    strip_quantity_words,
)
from fieldcraft.extensions.math.units import Quantity
from fieldcraft.rewards.answers import QUOTES, remove_redundant_space, strip_invisible

# Delimiters of mathematics in Math-Verify. An escaped $ is a currency sign.
MATH_DELIMITERS = re.compile(r"\\boxed|(?<!\\)\$|\\\(|\\\[")
COMMA_NUMBERS = re.compile(r"[-+]?\d+,\d+")  # two numbers, or one with a decimal comma
_MAX_EXPONENT = 400  # largest exponent that is expanded

_DIGITS = r"(?:\d{1,3}(?:_\d{3})+|\d+)"
_FLOAT = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_NUMBER_START = r"(?<![\w.\\^])"  # not inside a word, another number or a command
_NUMBER_END = r"(?![\w^]|\.\d)"
# Factors that may follow a fraction of two numbers without a space: 4/3πr^3 is not 4/(3πr^3).
# Before a variable, as in 1/2x, a space is required.
_CONSTANT = r"(?:\u03c0|(?:\\pi|pi|i)(?![A-Za-z])|\\sqrt\{?\d)"
_FRACTION_END = rf"(?:{_NUMBER_END}|(?={_CONSTANT}))"
_SHORT_DIGITS = r"\d{1,99}"  # digits of a number used in arithmetic
_ELLIPSIS = r"(?:\.\.\.|\u2026|\\(?:ldots|dots|cdots))"  # continued digits
# Notation of programs: without LaTeX commands these would be products of letters.
_FUNCTION = r"(?:exp|ln|log|sin|cos|tan|arc(?:sin|cos|tan))"
_GAP = r"(?:\\[ ,;!]|[\u00a0\u2009\u202f ])"  # white space in a number, in LaTeX and in Unicode

_RAISED = "\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b"

# Several numbers, which are not a product, and a date, which is not a difference.
_NO_TERM = re.compile(r"[-+]?[\d.]+(?:\s+[-+]?[\d.]+)+|\d{4}-\d\d-\d\d")
_EMPHASIS = re.compile(r"(\*{1,3}|`)(?P<inside>[^*`]+)\1")  # Markdown around a whole answer
_QUOTED = re.compile(rf"[{QUOTES}](?P<inside>[^{QUOTES}]+)[{QUOTES}]\.?")
_LETTERS = re.compile(r"[-+]?\d[\d.]*\s*[A-Za-z](?:\^\{?\d\}?)?")  # a unit or a variable
_PLAIN = re.compile(r"[-+*/^().,%$\d\s]+")

_Rewrite = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


def _expand_exponent(found: re.Match[str]) -> str:
    """Return a number with an exponent in expanded form. A number with a decimal point keeps it."""
    if abs(int(found[2])) > _MAX_EXPONENT:
        return f"{found[1]} \\times 10^{{{found[2]}}}"
    written = f"{Decimal(found[1].replace('_', '') + 'e' + found[2]):f}"
    return f"{written}.0" if "." in found[1] and "." not in written else written


def _to_decimal_integer(found: re.Match[str]) -> str:
    return str(int(found[0], 0))


def _convert_repeating(found: re.Match[str]) -> str:
    """Return a decimal with repeating last digits as a fraction."""
    return _repeating_to_fraction(*found.groups())


def _repeating_to_fraction(before: str, prefix: str, period: str) -> str:
    numerator = int(before + prefix + period) - int(before + prefix or "0")
    return rf"\frac{{{numerator}}}{{{'9' * len(period)}{'0' * len(prefix)}}}"


def _convert_recurring(found: re.Match[str]) -> str:
    """Return a decimal whose last digit repeats infinitely as a fraction."""
    before, _, behind = found[1].rpartition(".")
    return _repeating_to_fraction(before, behind, found[2])


def _to_ascii_digit(found: re.Match[str]) -> str:
    return str(unicodedata.decimal(found[0]))


def _convert_superscript(found: re.Match[str]) -> str:
    """Return an exponent written in superscript characters."""
    plain = unicodedata.normalize("NFKC", found[0]).replace("\u2212", "-")
    return f"^{{{plain}}}"


def _convert_vulgar_fraction(found: re.Match[str]) -> str:
    """Return a single-character fraction, possibly of a mixed number."""
    above, _, below = unicodedata.normalize("NFKC", found[2]).partition("\u2044")
    return _render_fraction(found[1], above, below)


def _convert_mixed(found: re.Match[str]) -> str:
    return _render_fraction(*found.groups())


def _render_fraction(integer: str | None, numerator: str, denominator: str) -> str:
    """Return a fraction, or a mixed number as one fraction; a factor may follow."""
    return rf"\frac{{{int(integer or 0) * int(denominator) + int(numerator)}}}{{{denominator}}}"


def _ungroup_digits(found: re.Match[str]) -> str:
    return re.sub(rf"{_GAP}+|_", "", found[0])


_REWRITES: tuple[_Rewrite, ...] = (
    (re.compile(r"(?![0-9])\d"), _to_ascii_digit),
    (re.compile(rf"[{_RAISED}]+"), _convert_superscript),
    (
        re.compile(rf"(?:{_NUMBER_START}({_SHORT_DIGITS})\s*)?([\u00bc-\u00be\u2150-\u215e])"),
        _convert_vulgar_fraction,
    ),
    (re.compile("\u221a ?(\\d+|[A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile("\u221a ?\\(([^()]*)\\)"), r"\\sqrt{\1}"),
    (re.compile("\u221e"), r"\\infty "),
    (re.compile(r"\\varnothing|\u2205"), r"\\emptyset "),
    (re.compile("[\u00b7\u22c5]"), r"\\cdot "),
    (re.compile(r"[\u20ac\u00a3\u00a5] ?(?=[\d.])|(?<=\d) ?[\u20ac\u00a3\u00a5]"), ""),
    (re.compile("[\u2212\u2013]"), "-"),
    (re.compile("\u2044"), "/"),
    (re.compile("\u00b0"), r"^\\circ"),
    (
        re.compile(rf"{_NUMBER_START}0(?:[xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+){_NUMBER_END}"),
        _to_decimal_integer,
    ),
    (re.compile(rf"{_NUMBER_START}({_FLOAT})[eE]([-+]?\d{{1,9}}){_NUMBER_END}"), _expand_exponent),
    (re.compile(rf"{_NUMBER_START}\d{{1,3}}(?:_\d{{3}})+(?!\d|_)"), _ungroup_digits),
    (
        re.compile(rf"{_NUMBER_START}(?<!\d )[1-9]\d{{0,2}}(?:{_GAP}+\d{{3}})+(?![\d/]|{_GAP}\d)"),
        _ungroup_digits,
    ),
    (
        re.compile(
            rf"{_NUMBER_START}({_SHORT_DIGITS}){_GAP}+({_SHORT_DIGITS}) ?/ "
            rf"?({_SHORT_DIGITS})(?:{_NUMBER_END}|(?={_CONSTANT}))"
        ),
        _convert_mixed,
    ),
    (re.compile(rf"{_NUMBER_START}(?<!/)(\d+)/(\d+)(?={_CONSTANT})"), r"\\frac{\1}{\2}"),
    (re.compile(rf"{_NUMBER_START}(?<!/)(\d+)/(\d+) +(?=\\?[A-Za-z])"), r"\\frac{\1}{\2} "),
    (re.compile(r"\*\* ?([-+]?[\d.]+|[A-Za-z]\w*)"), r"^{\1}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\^ ?([-+]\d+(?:\.\d+)?)"), r"^{\1}"),
    (re.compile(rf"{_NUMBER_START}(\d+)\.(\d*)\\overline ?\{{?(\d+)\}}?"), _convert_repeating),
    (re.compile(rf"{_NUMBER_START}(\d+)\.(\d*)\((\d+)\)(?![\w(])"), _convert_repeating),
    (
        re.compile(rf"{_NUMBER_START}(\d+)\.(\d*)\\dot ?\{{?(\d)\}}?(?!\d|\\dot)"),
        _convert_repeating,
    ),
    (re.compile(rf"{_NUMBER_START}(\d+\.\d*?)(\d)\2+{_ELLIPSIS}"), _convert_recurring),
    (re.compile(rf"(?<![A-Za-z\\])(?={_FUNCTION}\()"), r"\\"),
    (re.compile("\u00d7|(?<=\\d) ?x ?(?=10\\^)"), r"\\times "),
    (re.compile(r"\\(?:mathrm|text|textrm|operatorname|rm)\s*\{\s*(e|i)\s*\}"), r"\1 "),
    (re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])"), r"\\pi "),
)


def rewrite_for_math_verify(text: str) -> str:
    """Return a text with numbers and powers in the notation that Math-Verify parses."""
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def parse_math(text: str) -> list[list[Any]]:
    """Parse an answer with Math-Verify in every plausible interpretation. An answer without math
    delimiters is parsed as a whole. A number with a unit yields a `Quantity` and also the formula,
    because its letters may be variables."""
    text = strip_invisible(text).strip()
    if wrapping := _EMPHASIS.fullmatch(text) or _QUOTED.fullmatch(text):
        text = wrapping["inside"].strip()
    if not MATH_DELIMITERS.search(text):
        text = extract_stated_value(text)
    text = convert_number_words(degrees_to_radians(convert_matrices(text)))
    value, unit = split_unit(text)
    readings = _parse_plain(convert_number_words(value))
    if unit is None:
        return readings
    formula = (
        [_parse_latex(rewrite_for_math_verify(text), _WITH_UNITS)]
        if _LETTERS.fullmatch(text)
        else []
    )
    quantities = [[Quantity(v, unit) for v in r if isinstance(v, Basic)] for r in readings]
    return [
        reading for reading in (*quantities, *formula, [remove_redundant_space(text)]) if reading
    ]


def _parse_plain(text: str) -> list[list[Any]]:
    plain = rewrite_for_math_verify(strip_quantity_words(text)).removeprefix("=")
    if MATH_DELIMITERS.search(plain):
        found = [_parse_marked(plain)]
    else:
        plain = plain.rstrip(".") if re.search(r"[\w)}] ?\.$", plain) else plain
        found = [_parse_unmarked(plain)]
        if COMMA_NUMBERS.fullmatch(plain):
            found.append(list(parse(plain, parsing_timeout=None)))
    return [reading for reading in found if reading]


# -- whole and partial parses ------------------------------------------------------------------

_LATEX = LatexExtractionConfig()
_WITH_UNITS = LatexExtractionConfig(
    normalization_config=replace(_LATEX.normalization_config, units=False)
)


_SENTENCE = re.compile(r"[A-Za-z]{2,} +[A-Za-z]{2,}")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
# A sentence that ends with two numbers, neither of which is the answer by itself.
_JOINT = r"(?:\b(?:or|and|to)\b\D{0,30}|, *(?:(?:\\?[A-Za-z]+\.?|[^\w\s]) *)?)"
_TWO = re.compile(rf"\d\D{{0,30}}{_JOINT}[\d.,/]*\d\D{{0,30}}\Z")


def _parse_latex(text: str, config: LatexExtractionConfig) -> list[Any]:
    """Return the value of a formula as a whole, [] if it cannot be parsed as one."""
    return list(parse(f"${text}$", [config], "no_fallback", parsing_timeout=None))


def _parse_unmarked(text: str) -> list[Any]:
    """Return the value of a text without math delimiters, and the text itself. Words that
    Math-Verify takes for units may make a text unparsable."""
    if _NO_TERM.fullmatch(text):
        return [remove_redundant_space(text)]
    parsed = _parse_latex(text, _WITH_UNITS) or _parse_latex(text, _LATEX)
    if not parsed and _SENTENCE.search(text) and not _TWO.search(text):
        parsed = list(parse(text, parsing_timeout=None))
    if parsed and _WORD.search(text) and _is_product_of_letters(parsed[0]):
        parsed = []
    return [*parsed, remove_redundant_space(text)] if text else []


def _is_product_of_letters(value: Any) -> bool:
    """Return whether a value is 0 only because of a product of letters: "0 to 1" and "not 0" are
    not 0."""
    return bool(getattr(value, "free_symbols", ())) and value.doit() == 0


def _parse_marked(text: str) -> list[Any]:
    """Return the delimited formulas of a text. If one cannot be parsed as a whole, Math-Verify
    extracts a number from it; such a formula is treated as a string."""
    parsed = list(parse(text, parsing_timeout=None))
    if not parsed:
        return []
    formula = str(parsed[-1])
    if not isinstance(parsed[0], str) and (
        _parse_latex(formula, _LATEX) or _PLAIN.fullmatch(formula)
    ):
        return parsed
    reparsed = list(parse(text, [_WITH_UNITS], "no_fallback", parsing_timeout=None))
    return reparsed or ([formula] if formula.count("{") == formula.count("}") else [])


# -- degrees and matrices ----------------------------------------------------------------------

_TRIGONOMETRIC = re.compile(
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
    return _TRIGONOMETRIC.sub(lambda found: _DEGREES.sub(_to_radians, found[0]), text)


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
