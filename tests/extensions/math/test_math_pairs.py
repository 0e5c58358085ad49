"""Pairs of mathematical answers that are equal, and pairs that only look equal."""

import json
import logging
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldcraft.extensions.math.equality import is_equivalent
from fieldcraft.extensions.math.parser import parse_math, rewrite_for_math_verify
from fieldcraft.extensions.math.quantities import SMALL_NUMBERS, TENS, parse_number_words

SHARED = Path(__file__).parents[3] / "shared" / "data" / "graders" / "math_verify_cases.jsonl"
logging.getLogger("math_verify").setLevel(logging.ERROR)  # its own time limits are disabled
few = settings(max_examples=25, deadline=None)


def same(gold: str, answer: str) -> bool:
    return is_equivalent(parse_math(gold), parse_math(answer))


EQUAL = [
    ("\\frac{1}{2}", "\u200b0.5\ufeff"),
    ("1000", "the answer is 1\u2060000"),
    ("0.001", "1e-3"),
    ("0.001", "\\boxed{1.0E-3}"),
    ("1 1/2", "1.5"),
    ("-1 1/2", "-\\frac{3}{2}"),
    ("$1 1/2$", "3/2"),
    ("(1 1/2, 2)", "(1.5, 2)"),
    ("1 000 000", "1_000_000"),
    ("12345678", "12,345,678"),
    ("0x1F", "31"),
    ("2**10", "1024"),
    ("3*x**2", "3x^2"),
    ("\\frac{\\pi}{2}", "pi/2"),
    ("1 - \\frac{1}{\\mathrm{e}}", "1 - 1/e"),
    ("\\frac{1}{\\text{a}}", "1/a"),
    ("1.6 \\times 10^{-19}", "1.6e-19"),
    ("6.02 \\times 10^{23}", "6.02e23"),
    ("1.6 \\times 10^{-19}", "1.6 \u00d7 10^-19"),
    ("1.6 \\times 10^{-19}", "1.6x10^-19"),
    ("0.1\\overline{36}", "3/22"),
    ("100000000000000000000", "1.0000000000000002e+20"),  # in floating point
    ("0.3", "0.30000000000000004"),
    ("\\frac{1}{3}", "0.333333"),
    ("\\frac{1}{7}", "0.142857"),
    ("\\sqrt{2}", "1.414214"),
    ("\\sqrt{2}+\\sqrt{3}", "\\sqrt{5+2\\sqrt{6}}"),
    ("(10^{-9}, 1)", "(1e-9, 1.0)"),
    ("-5", "\u22125"),
    ("90", "90\u00b0"),
    ("5", "5 \\text{ cm}"),
    ("\\frac{2\\pi}{3}", "2/3 \\pi"),
    ("\\frac{3\\sqrt{2}}{4}", "3/4 \u221a2"),
    ("\\frac{x}{2}", "1/2 x"),
    ("x^2", "x\u00b2"),
    ("5000", "5\u00d710\u00b3"),
    ("10^{-3}", "10\u207b\u00b3"),
    ("\\frac{3}{2}", "1 \u00bd"),
    ("\\infty", "\u221e"),
    ("\\emptyset", "\\varnothing"),
    ("6", "2\u00b73"),
    ("12", "\u0967\u0968"),
    ("3.5", "\u20ac3.50"),
    ("5", "**5**"),
    ("5", "= 5"),
    ("\\frac{2\\pi}{3}", "2/3\u03c0"),
    ("\\frac{2\\pi}{3}", "$2/3\\pi$"),
    ("\\frac{2\\pi}{3}", "2/3pi."),
    ("\\frac{4}{3}\\pi r^3", "4/3\u03c0r\u00b3"),
    ("\\frac{2}{3\\pi}", "2/(3\u03c0)"),
    ("\\frac{2\\sqrt{2}}{3}", "2/3\u221a2"),
    ("\\frac{3}{2} + \\frac{1}{2}i", "3/2+1/2i"),
    ("\\frac{2}{3x}", "2/3x"),
    ("\\frac{3\\pi}{2}", "1 1/2\u03c0"),
    ("\\frac{3\\pi}{2}", "1\u00bd\u03c0"),
    ("5", "\\boxed{5 dollars}"),
    ("5", "about $5"),
    ("5", "\\boxed{\\approx 5}"),
    ("5", "$\\approx 5$"),
    ("\\frac{2\\pi}{3}", "\u2248 2/3\u03c0"),
    ("-5", "-$5"),
    ("1000", "1,000 dollars"),
    ("2", "2nd"),
    ("22", "22^{\\text{nd}}"),
    ("A", "\u201cA\u201d"),
    ("0", "0 cm"),
    ("18", "She makes $18 every day"),
    ("18", "The answer is 18."),
    ("18", "Final answer: 18"),
    ("18", "So the total is $18.00."),
    ("18", "Therefore, x = 18"),
    ("-18", "Hence it equals -18."),
    ("\\frac{3}{4}", "The probability that she wins is 3/4."),
    ("\\frac{\\pi}{2}", "The area is pi/2"),
    ("x + 1", "The answer is x+1."),
    ("A", "The answer is A"),
    ("\\frac{1}{3}", "0.(3)"),
    ("\\frac{1}{3}", "0.\\dot{3}"),
    ("\\frac{1}{3}", "0.333..."),
    ("\\frac{1}{6}", "0.1666\u2026"),
    ("\\frac{3}{5}", "3\u20445"),
    ("e^2", "exp(2)"),
    ("\\ln 2", "ln(2)"),
    ("\\sin x", "sin(x)"),
    ("\\frac{1}{8}", "0.125"),
    ("\\frac{x}{3}", "0.333333x"),
    ("1.5\\pi", "4.71238898"),
    ("18", "18 km/h"),
    ("18", "18 m^2"),
    ("18", "18 cm\u00b2"),
    ("18", "18\\text{ cm}^2"),
    ("18", "\\boxed{18\\text{ cm}^{2}}"),
    ("18", "$18$ km/h"),
    ("18\\pi", "18\\pi cm^2"),
    ("18 m/s", "18\\,\\mathrm{m\\,s^{-1}}"),
    ("18 m/s", "18~\\frac{\\text{m}}{\\text{s}}"),
    ("18 km", "18 kilometres"),
    ("18 km", "18000 m"),
    ("36 km/h", "10 m/s"),
    ("1 L", "1000 cm^3"),
    ("$5", "500 cents"),
    ("\\frac{\\pi}{6}", "30 degrees"),
    ("0.5", "50%"),
    ("50", "50%"),
    ("1000000", "1 million"),
    ("2500000000", "2.5 billion"),
    ("3000", "\\boxed{3 \\text{ thousand}}"),
    ("2000000", "$2 million"),
    ("2", "two"),
    ("12", "The answer is twelve."),
    ("12", "\\boxed{\\text{twelve}}"),
    ("1234", "one thousand two hundred and thirty-four"),
    ("100", "a hundred dollars"),
    ("\\frac{1}{2}", "\\sin 30^\\circ"),
    ("\\frac{\\sqrt{3}}{2}", "sin(60\u00b0)"),
    ("\\sqrt{2} - 1", "\\tan 22.5^{\\circ}"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "Matrix([[1, 2], [3, 4]])"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "[[1, 2], [3, 4]]"),
    ("\\begin{pmatrix}1\\\\ \\frac{1}{2}\\end{pmatrix}", "Matrix([1, Rational(1, 2)])"),
]
DIFFERENT = [
    ("3", "1 2"),
    ("6", "1 2 3"),
    ("2005", "2009-01-03"),
    ("\\frac{2}{3\\pi}", "2/3 \\pi"),
    ("x^2", "x\u00b3"),
    ("\\frac{1}{2^{99}}", "\\frac{1}{2^{98}}"),
    ("1.6 \\times 10^{-19}", "1.7 \\times 10^{-19}"),
    ("1 - \\frac{1}{\\mathrm{e}}", "1 + \\frac{1}{\\mathrm{e}}"),
    ("\\frac{1}{\\text{a}}", "\\frac{1}{\\text{b}}"),
    ("1 1/2", "1"),
    ("1 1/2", "11/2"),
    ("1_000", "1"),
    ("1 000 000", "0"),
    ("0x1F", "0"),
    ("3*x**2", "3"),
    ("2x+3)", "2"),
    ("$2x+3)$", "$2$"),
    ("$1 - \\frac{1}{\\text{a}}$", "$1 + \\frac{1}{\\text{a}}$"),
    ("\\boxed{1 - \\frac{1}{\\text{a}}}", "1"),
    ("0", "1e-7"),
    ("1e-300", "2e-300"),
    ("1e-400", "2e-400"),
    ("10^{-19}", "10^-18"),
    ("e^{-50}", "e^{-51}"),
    ("2^{100}", "2^{100}+1"),
    ("1000000.5", "1000001"),
    ("\\sqrt{2}", "1.4142"),
    ("\\{10^{-9}, 1\\}", "\\{2 \\cdot 10^{-9}, 1\\}"),
    ("[10^{-8}, 1]", "[2 \\cdot 10^{-8}, 1]"),
    ("10^{-9} x", "2 \\cdot 10^{-9} x"),
    ("x = 10^{-9}", "2 \\times 10^{-9}"),
    ("\\frac{2}{3\\pi}", "2/3\u03c0"),
    ("\\frac{1}{6}", "1/6in"),
    ("5", "$5-$6"),
    ("5", "not $5"),
    ("5", "more than $5"),
    ("5", "at least 5"),
    ("5", "5 million"),
    ("1", "0.9999999"),
    ("1", "0.999999999999"),
    ("2", "1.9999999"),
    ("\\frac{1}{8}", "0.1250001"),
    ("\\sqrt{4}", "1.9999999"),
    ("\\sqrt{3+2\\sqrt{2}}-\\sqrt{2}", "0.9999999"),
    ("3.1415926", "3.1415927"),
    ("\\frac{1}{3}", "0.333"),
    ("(1, 2)", "(0.9999999, 2)"),
    ("\\{1, 2\\}", "\\{0.9999999, 2\\}"),
    ("[0, 1)", "[0, 0.9999999)"),
    ("x = 1", "x = 0.9999999"),
    ("x + 1", "x + 0.9999999"),
    ("\\begin{pmatrix}1/3&1\\end{pmatrix}", "\\begin{pmatrix}0.333333&0.9999999\\end{pmatrix}"),
    ("18 km", "18 m"),
    ("18 km", "$18$ m"),
    ("18 km", "\\boxed{18\\text{ m}}"),
    ("18 km", "The distance is 18 m."),
    ("18 m^2", "18 m^3"),
    ("18\\pi \\text{ cm}^2", "18\\pi \\text{ cm}"),
    ("9.8 m/s^2", "9.8 m/s"),
    ("5 dollars", "5 cents"),
    ("$5", "5 euros"),
    ("20^\\circ C", "20^\\circ F"),
    ("30^\\circ", "30 rad"),
    ("50\\%", "50 km"),
    ("30", "1 hour 30 minutes"),
    ("6", "5 feet 6 inches"),
    ("18", "17 or 18 km"),
    ("18", "more than 18 km"),
    ("0.64N", "0.64"),
    ("y = 2m", "2"),
    ("2\\frac{m}{s}", "2"),
    ("1", "a"),
    ("2", "two or three"),
    ("2", "two and three"),
    ("201", "twenty one"),
    ("1 million", "1 thousand"),
    ("\\sin 30^\\circ", "\\sin 30"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "Matrix([[1, 2], [3, 5]])"),
    ("\\begin{pmatrix}1&2\\end{pmatrix}", "Matrix([1, 2])"),
    ("5", "5 dollars 30"),
    ("5", "5 out of 6"),
    ("5", "\u22655"),
    ("d n", "2nd"),
    ("1", "It is 0 or maybe 1."),
    ("0", "0 to 1"),
    ("0", "not 0"),
    ("18", "The answer is not 18."),
    ("18", "The answer is 17 or 18."),
    ("18", "The answer is more than 18."),
    ("18", "If x is 18"),
    ("Bob is 5 years older", "Ann is 5 years older"),
    ("18", "The answer is 180"),
    ("\\pi", "3.1415..."),
    ("3", "The ratio is 3:4"),
    ("11/2", "1\u20641/2"),
    ("5", "\u00ad5"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_answers_that_are_equal(gold, answer):
    assert same(gold, answer)
    assert same(answer, gold)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_answers_that_differ(gold, answer):
    assert not same(gold, answer)
    assert not same(answer, gold)


SIZES = st.integers(-250, 250)
DIGITS = st.integers(1, 99_999)


@few
@given(digits=DIGITS, size=SIZES)
def test_a_number_is_the_same_however_it_is_written(digits, size):
    number = Decimal(f"{digits}e{size}")
    ways = [f"{number:e}", f"{number:f}", f"{number:E}", f"{digits} \\times 10^{{{size}}}"]
    assert all(same(ways[0], way) and same(way, ways[0]) for way in ways)


@few
@given(digits=DIGITS, size=SIZES, other=DIGITS)
def test_numbers_of_any_size_differ_where_their_digits_do(digits, size, other):
    assert same(f"{digits}e{size}", f"{other}e{size}") is (digits == other)
    powers = [f"{n} \\times 10^{{{size}}}" for n in (digits, other)]
    assert same(*powers) is (digits == other)


@few
@given(whole=st.integers(0, 999), above=st.integers(1, 50), below=st.integers(2, 99))
def test_mixed_numbers(whole, above, below):
    value = whole + Fraction(above, below)
    assert same(f"{whole} {above}/{below}", f"{value.numerator}/{value.denominator}")
    assert not same(f"{whole} {above}/{below}", str(whole))


@few
@given(number=st.integers(0, 10**15))
def test_whole_numbers_as_programs_and_people_group_them(number):
    ways = [f"{number:,}", f"{number:_}", f"{number:_}".replace("_", " "), hex(number), bin(number)]
    assert all(same(str(number), way) for way in ways)
    assert not any(same(str(number + 1), way) for way in ways)


BEFORE = [
    "",
    "about ",
    "Approximately ",
    "approx. ",
    "\u2248",
    "~",
    "\\approx ",
    "$",
    "\\$",
    "\u20ac",
]
BEHIND = ["", " dollars", " euros", " USD", " times", " people", " miles per hour", " dollars each"]


@few
@given(
    number=st.integers(0, 10**6),
    other=st.integers(0, 10**6),
    before=st.sampled_from(BEFORE),
    behind=st.sampled_from(BEHIND),
    joint=st.sampled_from([" or ", " and ", ", ", " to "]),
)
def test_words_around_a_number_and_never_one_of_two_numbers(number, other, before, behind, joint):
    text = f"{before}{number}{behind}"
    assert same(str(number), text)
    assert same(text, str(number))
    assert same(str(number), f"\\boxed{{{text}}}") or "$" in before
    two = f"{text}{joint}{before}{other}{behind}"
    assert number == other or not (same(str(number), two) or same(str(other), two))


UNITS = ["km", "m", "cm^2", "kg", "hours", "minutes", "dollars", "cents", "euros", "m/s", "km/h"]
WAYS = ["{} {}", "\\boxed{{{}\\text{{ {}}}}}", "${}$ {}", "It is {} {}."]


@few
@given(
    number=st.integers(1, 10**6),
    units=st.tuples(st.sampled_from(UNITS), st.sampled_from(UNITS)),
    ways=st.tuples(st.sampled_from(WAYS), st.sampled_from(WAYS)),
)
def test_a_number_of_one_unit_is_none_of_another(number, units, ways):
    one, other = (way.format(number, unit) for way, unit in zip(ways, units, strict=True))
    assert same(str(number), one)
    assert same(one, other) is (units[0] == units[1])


@few
@given(number=st.decimals(0, 999, places=4), apart=st.integers(1, 10**4), places=st.integers(7, 11))
def test_decimals_beside_decimals_are_exact(number, apart, places):
    """Numbers have up to 14 digits; results of floating-point computations have 16 or more."""
    other = number + Decimal(apart).scaleb(-places)
    assert not same(f"{number:f}", f"{other:f}")
    assert same(f"{number:f}", f"{number:f}00")


@given(number=st.integers(0, 10**9))
def test_numbers_in_words(number):
    assert parse_number_words(in_words(number)) == number
    assert parse_number_words(in_words(number).replace("-", " ").capitalize()) == number


def in_words(number):
    if number < 20:
        return SMALL_NUMBERS[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f"-{SMALL_NUMBERS[number % 10]}" if number % 10 else "")
    for scale, word in (
        (10**9, "billion"),
        (10**6, "million"),
        (1000, "thousand"),
        (100, "hundred"),
    ):
        if number >= scale:
            rest = f" and {in_words(number % scale)}" if number % scale else ""
            return f"{in_words(number // scale)} {word}{rest}"


@given(text=st.text(alphabet="two and-minus1 ", max_size=12))
def test_other_text_is_no_number_in_words(text):
    value = parse_number_words(text)
    assert value is None or in_words(abs(value)).split("-")[0] in text


@pytest.mark.parametrize("text", ["x_1", "1112112_3", "e^{2}", "x1e5", "5 cm", "(1, 200)", "a_100"])
def test_other_mathematics_is_not_rewritten(text):
    assert rewrite_for_math_verify(text) == text


@pytest.mark.long
def test_math_verifys_own_cases():
    """Math-Verify disagrees in three cases: it rounds to two digits in one, and calls 9 and 9
    different in two."""
    if not SHARED.exists():
        pytest.skip("the cases of Math-Verify are not here")
    cases = [json.loads(line) for line in SHARED.read_text("utf-8").splitlines()]
    as_wanted = [same(case["gold"], case["pred"]) == bool(case["expected"]) for case in cases]
    assert sum(as_wanted) >= len(cases) - 3
