"""Regular expressions that match the same text in every supported version of Python."""

import re
from pathlib import Path

import fieldcraft

# Before version 3.11.5, Python matches wrongly if a part of a repeated group that keeps its matches
# ("possessive") fails, as in (?:(?!a)[ab])*+, or in an atomic group.
POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{\d*,?\d*\})\+|\(\?>")


def test_no_group_is_possessive() -> None:
    found = [
        f"{path.name}:{number}"
        for path in Path(fieldcraft.__file__).parent.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if POSSESSIVE_GROUP.search(line)
    ]
    assert found == []


def test_possessive_groups_are_found() -> None:
    assert all(map(POSSESSIVE_GROUP.search, ["(a|b)*+", "(?:a)++c", "(a)?+", "(a){2,3}+", "(?>a)"]))
    assert not any(map(POSSESSIVE_GROUP.search, ["[ab]*+", "(a)+b", "(a)*", r"\d++"]))
