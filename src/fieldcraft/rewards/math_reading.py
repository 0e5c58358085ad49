"""Mathematics in an answer, read by Math-Verify in every way that it can be meant.

What Math-Verify reads in part only, or as something else, is rewritten as LaTeX before: numbers as
Python writes them, mixed numbers, powers with `**`. A text of which only a part can be read counts
as a text, which equals nothing but itself.
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

from fieldcraft.rewards.answers import QUOTES, closed_up, visible
from fieldcraft.rewards.math_notation import in_radians, with_matrices
from fieldcraft.rewards.math_numerals import in_digits
from fieldcraft.rewards.math_quantities import value_of, without_unit, without_words
from fieldcraft.rewards.math_units import Quantity

# Where Math-Verify finds mathematics. An escaped $ is a currency.
MARKS = re.compile(r"\\boxed|(?<!\\)\$|\\\(|\\\[")
COMMA = re.compile(r"[-+]?\d+,\d+")  # two numbers, or one with a decimal comma
_LARGEST = 400  # an exponent that is written out

_DIGITS = r"(?:\d{1,3}(?:_\d{3})+|\d+)"
_FLOAT = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_ALONE = r"(?<![\w.\\^])"  # no part of a word, of another number or of a command
_NO_MORE = r"(?![\w^]|\.\d)"
# What a fraction of two numbers is a factor of, without a space: 4/3πr^3 is no 4/(3πr^3). Before
# a variable, as in 1/2x, it is none without one.
_CONSTANT = r"(?:\u03c0|(?:\\pi|pi|i)(?![A-Za-z])|\\sqrt\{?\d)"
_END = rf"(?:{_NO_MORE}|(?={_CONSTANT}))"
_FEW = r"\d{1,99}"  # digits of a number that is computed with
_ON = r"(?:\.\.\.|\u2026|\\(?:ldots|dots|cdots))"  # the digits go on
# Of a program: without a sign of LaTeX they are products of letters.
_FUNCTION = r"(?:exp|ln|log|sin|cos|tan|arc(?:sin|cos|tan))"
_GAP = r"(?:\\[ ,;!]|[\u00a0\u2009\u202f ])"  # white space in a number, in LaTeX and in Unicode

_RAISED = "\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b"

# Several numbers, which are no product, and a date, which is no difference.
_NO_TERM = re.compile(r"[-+]?[\d.]+(?:\s+[-+]?[\d.]+)+|\d{4}-\d\d-\d\d")
_EMPHASIS = re.compile(r"(\*{1,3}|`)(?P<inside>[^*`]+)\1")  # of Markdown, around all of an answer
_QUOTED = re.compile(rf"[{QUOTES}](?P<inside>[^{QUOTES}]+)[{QUOTES}]\.?")
_LETTERS = re.compile(r"[-+]?\d[\d.]*\s*[A-Za-z](?:\^\{?\d\}?)?")  # a unit or a variable
_PLAIN = re.compile(r"[-+*/^().,%$\d\s]+")

_Rewrite = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


def _decimal(found: re.Match[str]) -> str:
    """Return a number with an exponent, written out. One with a point stays one with a point."""
    if abs(int(found[2])) > _LARGEST:
        return f"{found[1]} \\times 10^{{{found[2]}}}"
    written = f"{Decimal(found[1].replace('_', '') + 'e' + found[2]):f}"
    return f"{written}.0" if "." in found[1] and "." not in written else written


def _whole(found: re.Match[str]) -> str:
    return str(int(found[0], 0))


def _repeating(found: re.Match[str]) -> str:
    """Return a decimal whose last digits repeat, as a fraction."""
    return _repeating_of(*found.groups())


def _repeating_of(before: str, behind: str, again: str) -> str:
    above = int(before + behind + again) - int(before + behind or "0")
    return rf"\frac{{{above}}}{{{'9' * len(again)}{'0' * len(behind)}}}"


def _recurring(found: re.Match[str]) -> str:
    """Return a decimal whose last digit goes on and on, as a fraction."""
    before, _, behind = found[1].rpartition(".")
    return _repeating_of(before, behind, found[2])


def _digit(found: re.Match[str]) -> str:
    return str(unicodedata.decimal(found[0]))


def _power(found: re.Match[str]) -> str:
    """Return an exponent in raised signs."""
    plain = unicodedata.normalize("NFKC", found[0]).replace("\u2212", "-")
    return f"^{{{plain}}}"


def _vulgar(found: re.Match[str]) -> str:
    """Return a fraction that is one sign, maybe of a mixed number."""
    above, _, below = unicodedata.normalize("NFKC", found[2]).partition("\u2044")
    return _fraction(found[1], above, below)


def _mixed(found: re.Match[str]) -> str:
    return _fraction(*found.groups())


def _fraction(whole: str | None, above: str, below: str) -> str:
    """Return a fraction, or a mixed number as one: behind it may stand a factor."""
    return rf"\frac{{{int(whole or 0) * int(below) + int(above)}}}{{{below}}}"


def _grouped(found: re.Match[str]) -> str:
    return re.sub(rf"{_GAP}+|_", "", found[0])


_REWRITES: tuple[_Rewrite, ...] = (
    (re.compile(r"(?![0-9])\d"), _digit),
    (re.compile(rf"[{_RAISED}]+"), _power),
    (re.compile(rf"(?:{_ALONE}({_FEW})\s*)?([\u00bc-\u00be\u2150-\u215e])"), _vulgar),
    (re.compile("\u221a ?(\\d+|[A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile("\u221a ?\\(([^()]*)\\)"), r"\\sqrt{\1}"),
    (re.compile("\u221e"), r"\\infty "),
    (re.compile(r"\\varnothing|\u2205"), r"\\emptyset "),
    (re.compile("[\u00b7\u22c5]"), r"\\cdot "),
    (re.compile(r"[\u20ac\u00a3\u00a5] ?(?=[\d.])|(?<=\d) ?[\u20ac\u00a3\u00a5]"), ""),
    (re.compile("[\u2212\u2013]"), "-"),
    (re.compile("\u2044"), "/"),
    (re.compile("\u00b0"), r"^\\circ"),
    (re.compile(rf"{_ALONE}0(?:[xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+){_NO_MORE}"), _whole),
    (re.compile(rf"{_ALONE}({_FLOAT})[eE]([-+]?\d{{1,9}}){_NO_MORE}"), _decimal),
    (re.compile(rf"{_ALONE}\d{{1,3}}(?:_\d{{3}})+(?!\d|_)"), _grouped),
    (re.compile(rf"{_ALONE}(?<!\d )[1-9]\d{{0,2}}(?:{_GAP}+\d{{3}})+(?![\d/]|{_GAP}\d)"), _grouped),
    (
        re.compile(rf"{_ALONE}({_FEW}){_GAP}+({_FEW}) ?/ ?({_FEW})(?:{_NO_MORE}|(?={_CONSTANT}))"),
        _mixed,
    ),
    (re.compile(rf"{_ALONE}(?<!/)(\d+)/(\d+)(?={_CONSTANT})"), r"\\frac{\1}{\2}"),
    (re.compile(rf"{_ALONE}(?<!/)(\d+)/(\d+) +(?=\\?[A-Za-z])"), r"\\frac{\1}{\2} "),
    (re.compile(r"\*\* ?([-+]?[\d.]+|[A-Za-z]\w*)"), r"^{\1}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\^ ?([-+]\d+(?:\.\d+)?)"), r"^{\1}"),
    (re.compile(rf"{_ALONE}(\d+)\.(\d*)\\overline ?\{{?(\d+)\}}?"), _repeating),
    (re.compile(rf"{_ALONE}(\d+)\.(\d*)\((\d+)\)(?![\w(])"), _repeating),
    (re.compile(rf"{_ALONE}(\d+)\.(\d*)\\dot ?\{{?(\d)\}}?(?!\d|\\dot)"), _repeating),
    (re.compile(rf"{_ALONE}(\d+\.\d*?)(\d)\2+{_ON}"), _recurring),
    (re.compile(rf"(?<![A-Za-z\\])(?={_FUNCTION}\()"), r"\\"),
    (re.compile("\u00d7|(?<=\\d) ?x ?(?=10\\^)"), r"\\times "),
    (re.compile(r"\\(?:mathrm|text|textrm|operatorname|rm)\s*\{\s*(e|i)\s*\}"), r"\1 "),
    (re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])"), r"\\pi "),
)


def rewritten(text: str) -> str:
    """Return a text in which numbers and powers are written as Math-Verify reads them."""
    for pattern, instead in _REWRITES:
        text = pattern.sub(instead, text)
    return text


def read(text: str) -> list[list[Any]]:
    """Read an answer as Math-Verify does, in every way that it can be meant. One without marks is
    mathematics as a whole. A number with a unit is a `Quantity`, and the formula beside it, for
    letters may be variables."""
    text = visible(text).strip()
    if around := _EMPHASIS.fullmatch(text) or _QUOTED.fullmatch(text):
        text = around["inside"].strip()
    if not MARKS.search(text):
        text = value_of(text)
    text = in_digits(in_radians(with_matrices(text)))
    value, unit = without_unit(text)
    readings = _read(in_digits(value))
    if unit is None:
        return readings
    formula = [_latex(rewritten(text), _WITH_UNITS)] if _LETTERS.fullmatch(text) else []
    quantities = [[Quantity(v, unit) for v in r if isinstance(v, Basic)] for r in readings]
    return [reading for reading in (*quantities, *formula, [closed_up(text)]) if reading]


def _read(text: str) -> list[list[Any]]:
    plain = rewritten(without_words(text)).removeprefix("=")
    if MARKS.search(plain):
        found = [_in_text(plain)]
    else:
        plain = plain.rstrip(".") if re.search(r"[\w)}] ?\.$", plain) else plain
        found = [_whole_of(plain)]
        if COMMA.fullmatch(plain):
            found.append(list(parse(plain, parsing_timeout=None)))
    return [reading for reading in found if reading]


# -- whole and in part -------------------------------------------------------------------------

_LATEX = LatexExtractionConfig()
_WITH_UNITS = LatexExtractionConfig(
    normalization_config=replace(_LATEX.normalization_config, units=False)
)


_SENTENCE = re.compile(r"[A-Za-z]{2,} +[A-Za-z]{2,}")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
# A sentence that ends with two numbers, of which neither alone is the answer.
_JOINT = r"(?:\b(?:or|and|to)\b\D{0,30}|, *(?:(?:\\?[A-Za-z]+\.?|[^\w\s]) *)?)"
_TWO = re.compile(rf"\d\D{{0,30}}{_JOINT}[\d.,/]*\d\D{{0,30}}\Z")


def _latex(text: str, config: LatexExtractionConfig) -> list[Any]:
    """Return the value of a formula as a whole, nothing where it cannot be read as one."""
    return list(parse(f"${text}$", [config], "no_fallback", parsing_timeout=None))


def _whole_of(text: str) -> list[Any]:
    """Return the meaning of a text without marks, and the text itself. What Math-Verify takes for
    units may be what makes it unreadable."""
    if _NO_TERM.fullmatch(text):
        return [closed_up(text)]
    found = _latex(text, _WITH_UNITS) or _latex(text, _LATEX)
    if not found and _SENTENCE.search(text) and not _TWO.search(text):
        found = list(parse(text, parsing_timeout=None))
    if found and _WORD.search(text) and _is_product_of_letters(found[0]):
        found = []
    return [*found, closed_up(text)] if text else []


def _is_product_of_letters(value: Any) -> bool:
    """Tell whether a value is 0 only as a factor of letters: "0 to 1" and "not 0" are no 0."""
    return bool(getattr(value, "free_symbols", ())) and value.doit() == 0


def _in_text(text: str) -> list[Any]:
    """Return the formulas that are marked in a text. Where one cannot be read as a whole,
    Math-Verify takes a number that stands in it; then the formula is a text."""
    found = list(parse(text, parsing_timeout=None))
    if not found:
        return []
    formula = str(found[-1])
    if not isinstance(found[0], str) and (_latex(formula, _LATEX) or _PLAIN.fullmatch(formula)):
        return found
    again = list(parse(text, [_WITH_UNITS], "no_fallback", parsing_timeout=None))
    return again or ([formula] if formula.count("{") == formula.count("}") else [])
