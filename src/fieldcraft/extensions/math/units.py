"""Units of measurement: the text after a number, parsed as a product of powers.

A unit consists of its dimensions and an exact factor, so 18 km equals 18000 m and not 18 m. If two
units of one kind have no exact conversion factor, such as dollars and euros, each is a separate
dimension.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr, Mul, Rational, pi, sympify

Dimensions = Mapping[str, int]


@dataclass(frozen=True)
class Unit:
    """Dimensions with their powers, and the size of the unit in these dimensions."""

    dimensions: frozenset[tuple[str, int]]
    factor: Expr


@dataclass(frozen=True)
class Quantity:
    """A value and its unit."""

    value: Any
    unit: Unit

    @property
    def in_base_units(self) -> Any:
        return Mul(self.unit.factor, self.value, evaluate=False)


_INCH = Rational(254, 10_000)
# Names, size and dimensions of each unit. The base units are metres, grams and seconds.
_TABLE: tuple[tuple[str, Any, Dimensions], ...] = (
    ("m meter metre", 1, {"m": 1}),
    ("km kms kilometer kilometre", 1000, {"m": 1}),
    ("dm decimeter decimetre", Rational(1, 10), {"m": 1}),
    ("cm centimeter centimetre", Rational(1, 100), {"m": 1}),
    ("mm millimeter millimetre", Rational(1, 1000), {"m": 1}),
    ("nm nanometer nanometre", Rational(1, 10**9), {"m": 1}),
    ("in inch inches", _INCH, {"m": 1}),
    ("ft foot feet", 12 * _INCH, {"m": 1}),
    ("yd yds yard", 36 * _INCH, {"m": 1}),
    ("mi mile", 63_360 * _INCH, {"m": 1}),
    ("g gram", 1, {"g": 1}),
    ("kg kgs kilogram", 1000, {"g": 1}),
    ("mg milligram", Rational(1, 1000), {"g": 1}),
    ("tonne", 10**6, {"g": 1}),
    ("ton", 1, {"ton": 1}),
    ("lb lbs pound GBP", 1, {"pound": 1}),
    ("oz ounce", 1, {"ounce": 1}),
    ("s sec second", 1, {"s": 1}),
    ("ms millisecond", Rational(1, 1000), {"s": 1}),
    ("min minute", 60, {"s": 1}),
    ("h hr hrs hour", 3600, {"s": 1}),
    ("day", 86_400, {"s": 1}),
    ("week", 604_800, {"s": 1}),
    ("month", 1, {"month": 1}),
    ("yr yrs year", 12, {"month": 1}),
    ("L l liter litre", Rational(1, 1000), {"m": 3}),
    ("mL ml milliliter millilitre", Rational(1, 10**6), {"m": 3}),
    ("gal gallon", 1, {"gallon": 1}),
    ("quart", Rational(1, 4), {"gallon": 1}),
    ("pint", Rational(1, 8), {"gallon": 1}),
    ("cup", Rational(1, 16), {"gallon": 1}),
    ("acre", 1, {"acre": 1}),
    ("hectare", 10**4, {"m": 2}),
    ("mph", 63_360 * _INCH / 3600, {"m": 1, "s": -1}),
    ("kmh kph", Rational(1000, 3600), {"m": 1, "s": -1}),
    ("N newton", 1000, {"g": 1, "m": 1, "s": -2}),
    ("J joule", 1000, {"g": 1, "m": 2, "s": -2}),
    ("kJ kilojoule", 10**6, {"g": 1, "m": 2, "s": -2}),
    ("W watt", 1000, {"g": 1, "m": 2, "s": -3}),
    ("kW kilowatt", 10**6, {"g": 1, "m": 2, "s": -3}),
    ("Pa pascal", 1000, {"g": 1, "m": -1, "s": -2}),
    ("kPa kilopascal", 10**6, {"g": 1, "m": -1, "s": -2}),
    ("Hz hertz", 1, {"s": -1}),
    ("V volt", 1, {"volt": 1}),
    ("A amp ampere", 1, {"ampere": 1}),
    ("ohm Ω", 1, {"ohm": 1}),
    ("mol mole", 1, {"mole": 1}),
    ("K kelvin", 1, {"kelvin": 1}),
    ("°C", 1, {"celsius": 1}),
    ("°F", 1, {"fahrenheit": 1}),
    ("° deg degree", pi / 180, {}),
    ("rad radian", 1, {}),
    ("% percent", Rational(1, 100), {}),
    ("dollar USD buck", 1, {"dollar": 1}),
    ("cent ¢", Rational(1, 100), {"dollar": 1}),
    ("euro EUR", 1, {"euro": 1}),
    ("yen yuan JPY CNY", 1, {"yen": 1}),
    ("rupee INR", 1, {"rupee": 1}),
    ("each", 1, {}),
    ("unit", 1, {"unit": 1}),
    ("person people", 1, {"person": 1}),
    ("child children kid", 1, {"child": 1}),
    ("time", 1, {"time": 1}),
    ("o'clock", 1, {"o'clock": 1}),
    ("item", 1, {"item": 1}),
    ("word", 1, {"word": 1}),
    ("page", 1, {"page": 1}),
)
_CURRENCY_SIGNS = {"$": "dollar", "\\$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
_UNITS_BY_NAME = {
    name: (factor, dimensions) for names, factor, dimensions in _TABLE for name in names.split()
}
_MIN_LONG_NAME = 3  # letters of a name that also matches in capitals and in the plural

_UNIT_NAME = r"(?:°[CF]?|%|¢|Ω|[Oo]['’]clock|[A-Za-z]+)"
_FACTOR = re.compile(rf"(?P<join>^|[/* ])(?P<name>{_UNIT_NAME})\.?(?:\^(?P<power>-?[1-9]))?")
_NORMALISATIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\(?:text(?:rm|bf)?|math(?:rm|bf)|mbox|rm)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"\\(?:[,;:! ]|quad)|~|\u00a0|\u202f|\u2009"), " "),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?\s*|\\degree|\u00b0"), "°"),
    (re.compile(r"\\%"), "%"),
    (re.compile("\u00b2"), "^2"),
    (re.compile("\u00b3"), "^3"),
    (re.compile(r"\s*\^\s*\{?\s*([-\u2212]?)(\d)\s*\}?"), r"^\1\2"),
    (re.compile(r"\b(?:degrees?|deg)\.? ?(?:Celsius|C)\b", re.IGNORECASE), "°C"),
    (re.compile(r"\b(?:degrees?|deg)\.? ?(?:Fahrenheit|F)\b", re.IGNORECASE), "°F"),
    (re.compile(r"\b(?:square|sq\.?) ([A-Za-z]+)", re.IGNORECASE), r"\1^2"),
    (re.compile(r"\b(?:cubic|cu\.?) ([A-Za-z]+)", re.IGNORECASE), r"\1^3"),
    (re.compile(r"([A-Za-z]) squared\b", re.IGNORECASE), r"\1^2"),
    (re.compile(r"([A-Za-z]) cubed\b", re.IGNORECASE), r"\1^3"),
    (re.compile(r"\bUS (?=dollar)", re.IGNORECASE), ""),
    (re.compile(r"\s*(?:/|\b(?:per|an?)\b)\s*", re.IGNORECASE), "/"),
    (re.compile(r"\s*(?:\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|[*\u00b7\u22c5])\s*"), "*"),
    (re.compile("[\u2212\u2013]"), "-"),
    (re.compile(r"\s+"), " "),
)  # fmt: skip


def parse_unit(text: str) -> Unit | None:
    """Return the unit that a whole text names in words, signs or LaTeX; None for any other text."""
    for pattern, replacement in _NORMALISATIONS:
        text = pattern.sub(replacement, text)
    text = text.strip()
    matches = list(_FACTOR.finditer(text))
    if not matches or "".join(match[0] for match in matches) != text:
        return None
    powers: Counter[str] = Counter()
    factor: Any = sympify(1)
    for match in matches:
        known = _find_unit(match["name"])
        if known is None:
            return None
        power = int(match["power"] or 1) * (-1 if match["join"] == "/" else 1)
        factor *= sympify(known[0]) ** power
        powers.update({name: times * power for name, times in known[1].items()})
    return Unit(frozenset((name, times) for name, times in powers.items() if times), factor)


def parse_currency(sign: str) -> Unit | None:
    """Return the currency unit that a sign or an abbreviation before a number denotes."""
    sign = re.sub(r"^US(?!D)\s*", "", sign.strip().upper())
    return parse_unit(_CURRENCY_SIGNS.get(sign, sign))


def _find_unit(name: str) -> tuple[Any, Dimensions] | None:
    name = name.replace("’", "'")
    if name in _UNITS_BY_NAME or len(name) < _MIN_LONG_NAME:
        return _UNITS_BY_NAME.get(name)
    small = name.lower()
    return next(
        (
            _UNITS_BY_NAME[n]
            for n in (small, small.removesuffix("s"))
            if n in _UNITS_BY_NAME and len(n) >= _MIN_LONG_NAME
        ),
        None,
    )
