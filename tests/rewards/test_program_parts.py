"""Programs in several blocks, and blocks that only show the use of a program."""

import io
from contextlib import redirect_stdout
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.rewards.program_extraction import extract_program

STATEMENTS = [
    "from __future__ import annotations",
    "import math",
    "LIMIT = 10",
    "def square(n):\n    return n * n",
    "def total(n):\n    return sum(square(i) for i in range(min(n, LIMIT))) + math.floor(0.5)",
    "n = int(input())",
    "print(total(n))",
]
TEXT = ["", "Now the rest:", "```text\n5\n```", "```bash\npython a.py\n```", "```\n14\n```"]
TEXT += ["```output\n14\n```", "```json\n[1]\n```"]


def fenced(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code}\n```"


def printed(answer: str) -> str:
    code = extract_program(answer)
    assert code is not None
    out = io.StringIO()
    with redirect_stdout(out):
        exec(code, {"__name__": "__main__", "input": lambda: "4"})
    return out.getvalue()


@given(
    places=st.sets(st.integers(1, len(STATEMENTS) - 1)),
    between=st.lists(st.sampled_from(TEXT), min_size=8, max_size=8),
    tag=st.sampled_from(["python", "py", "python3", ""]),
)
def test_a_program_is_joined_wherever_it_is_split(
    places: set[int], between: list[str], tag: str
) -> None:
    cuts = [0, *sorted(places), len(STATEMENTS)]
    blocks = [fenced("\n".join(STATEMENTS[a:b]), tag) for a, b in pairwise(cuts)]
    answer = "\n".join(part for pair in zip(between, blocks, strict=False) for part in pair)
    assert printed(f"{answer}\n{between[-1]}") == "14\n"


PROGRAM = "def twice(n):\n    return 2 * n\n\nprint(twice(int(input())))"
EXAMPLES = [
    "print(twice(3))",
    "result = twice(3)\nprint(result)",
    "assert twice(3) == 6",
    "for n in [1, 2]:\n    print(twice(n))",
    "from solution import twice\nprint(twice(3))",
    "def test_twice():\n    assert twice(3) == 6",
    "import unittest\n\nclass TestTwice(unittest.TestCase):\n    def test(self):\n"
    "        self.assertEqual(twice(3), 6)\n\nunittest.main()",
]


@given(examples=st.lists(st.sampled_from(EXAMPLES), max_size=3), text=st.sampled_from(TEXT))
def test_examples_of_its_use_are_no_part_of_a_program(examples: list[str], text: str) -> None:
    answer = "\n".join([fenced(PROGRAM), *(f"{text}\n{fenced(e)}" for e in examples)])
    assert printed(answer) == "8\n"


@pytest.mark.parametrize(
    ("blocks", "output"),
    [
        (["print('old')", PROGRAM], "8\n"),  # the last one is complete
        ([PROGRAM, PROGRAM + "\nprint(twice(1))"], "8\n2\n"),  # so is one that repeats it
        (["def f():\n    return 1", "def f():\n    return 2", "print(f())"], "2\n"),
        (["def f(n):\n    return n", "print(f(int(input())))"], "4\n"),
        (["def f():\n    print(input())", "f()"], "4\n"),
        (["def f():\n    return 1", "x = f()", "print(x)"], "1\n"),
        (["import math", "print('unneeded')", "print(math.gcd(4, 6))"], "2\n"),
        (["def f():\n    return 1\n\nprint(f())", "LIMIT = 3"], "1\n"),
    ],
)
def test_which_blocks_make_up_the_program(blocks: list[str], output: str) -> None:
    assert printed("\n".join(map(fenced, blocks))) == output


def test_what_a_prelude_defines_is_looked_for_nowhere() -> None:
    code = "def f(values: List[int]) -> int:\n    return math.prod(values)\n"
    assert extract_program(f"{fenced('print(1)')}\n{fenced(code)}") == f"{code}\n"


@pytest.mark.parametrize(
    "blocks",
    [
        ("a = [int(x) for x in '312']", "a = sorted(a)\nprint(a[0])"),
        ("total = 0", "for v in [1]:\n    total += v\nprint(total)"),
        ("total = 0", "if input():\n    total = total + 1\nprint(total)"),
        ("from math import *", "def solve(x):\n    return int(sqrt(x))\n\nprint(solve(1))"),
        ("n = 1", "n, m = n, 2\nprint(n)"),
        ("n = 0", "n = (k := n) + 1\nprint(n)"),
        ("n = 0", "match n:\n    case m:\n        n = m + 1\nprint(n)"),
    ],
)
def test_a_name_that_is_read_before_it_is_bound_comes_from_an_earlier_block(
    blocks: tuple[str, str],
) -> None:
    assert printed("\nThen:\n".join(map(fenced, blocks))) == "1\n"


@pytest.mark.parametrize(
    "code",
    [
        "for n in [1]:\n    print(n)",
        "print([n for n in [1]][0])",
        "with open(0) as n:\n    print(n)",
        "import os as n\nprint(n)",
        "def f(n=1):\n    return n\nprint(f())",
        "def f():\n    global n\n    n = 1\nf()\nprint(n)",
        "try:\n    print(1)\nexcept ValueError as n:\n    print(n)",
        "n: int = 1\nn += 1\nprint(n)",
        "while (n := 1) > 2:\n    pass\nprint(n)",
        "class n:\n    pass\nprint(n)",
    ],
)
def test_a_program_that_binds_its_names_needs_no_earlier_block(code: str) -> None:
    assert extract_program(f"{fenced('n = 5')}\nBetter:\n{fenced(code)}") == f"{code}\n"
