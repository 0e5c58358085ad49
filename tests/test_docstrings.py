"""Docstrings start with a verb or a noun phrase, as in technical English."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from syntax_trees import tree_of

SOURCES = Path(__file__).parents[1] / "src" / "fieldcraft"
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
# Question words, starts of half sentences, and references to other text.
VAGUE = re.compile(
    r"(What|Of|Those|That|This|These|Whether|How|Who|Which|Where|Why|When|As|By|For|With|True if"
    r"|It|They|Its)\b"
)
# First words of a description where a verb belongs: Return the ..., Write a ...
NOUNS = re.compile(r"(The|A|An|All|Every|Each|Both|One|Everything|Nothing)\b")


def docstrings() -> Iterator[tuple[str, DOCUMENTED, str]]:
    """Yield (place, node, text) of all docstrings of the package."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                name = getattr(node, "name", "module")
                yield f"{path.relative_to(SOURCES)}: {name}", node, text


def test_none_begins_with_half_a_sentence() -> None:
    found = [f"{place}: {text[:50]}" for place, _, text in docstrings() if VAGUE.match(text)]
    assert found == []


def test_that_of_a_module_begins_with_a_sentence() -> None:
    found = [
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if (path.name != "__init__.py" or path.read_text("utf-8").strip())
        and not (ast.get_docstring(tree_of(path)) or "").partition("\n")[0].endswith(".")
    ]
    assert found == []


def test_those_of_functions_begin_with_a_verb() -> None:
    """Properties are excluded: they are named like values, and may be described like them."""
    found = [
        f"{place}: {text[:50]}"
        for place, node, text in docstrings()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("property" in ast.unparse(mark) for mark in node.decorator_list)
        and NOUNS.match(text)
    ]
    assert found == []
