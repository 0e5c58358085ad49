"""Names are standard terms of the field; retired names do not return.

Tests of imports and file lengths are in test_layers.py, of docstrings in test_docstrings.py.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from syntax_trees import tree_of

SOURCES = Path(__file__).parents[1] / "src" / "fieldcraft"


def words(text: str) -> set[str]:
    return set(text.split())


# Words that no identifier contains: `told`, `_open_kept`, `SeatUse`.
RETIRED_WORDS = words(
    """
    alone anew asked asking begins begun beside cargo deaths dealer fleet house kept meant nursery
    observes parcel parcels remark remarks said says scribe seat seated seats shown spread talk
    talks thinks told travelling useless viewed whole wired wish
    """
)
# Identifiers of any kind, without leading underscores. They are words of sentences, or constants
# without quantity and unit.
RETIRED_NAMES = words(
    """
    at by coming few gone hear held here how look mine of on once one play say so tell
    there what ALONE ANEW LEFT PACE PATIENCE ROOM SHOWN SILENCE
    """
)
RETIRED_CLASSES = words(
    """
    Arrived BadFrame Clipped Closing Coming Damaged Doubt Drawer During Ends Follower GaveUp
    Gone Graded Ground Guide Here Home Hosted InTurn Keeper Keeping Lost Maker Material Meeting
    Moved NoWorker OnRanks Outbox Over Packed Passes Posted RanksLost Refused Says Seen Several
    Sized Told Travelling Unasked Unsound Usual Valuing
    """
)
RETIRED_MODULES = words(
    """
    answering asked beginning cargo comparing complaints dealing following home kept making material
    opening outbox parcels probing replaying served showing told tracking viewed wired
    """
)
# Relations instead of verbs: `rate_of`, `of_trained`; other words for check, raise and reject.
RETIRED_FUNCTIONS = re.compile(r"_*(of|refuse|look_at|see_to)_|.*_(of|agree|is_a)$")
RETIRED_CONSTANTS = re.compile(r"_*MOST_")

# Keys of recipes and of files, which are not renamed with the code.
KEYS = {
    ("data/sample_tallies.py", "of"),
    ("extensions/trackers/subscriber.py", "told"),
    ("extensions/studio/branch_command.py", "at"),
}


def class_names() -> Counter[str]:
    """Count the definitions of each class name, nested and private classes included."""
    trees = (tree_of(path) for path in SOURCES.rglob("*.py"))
    return Counter(n.name for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef))


def identifiers(tree: ast.Module) -> Iterator[tuple[str, type[ast.AST]]]:
    """Yield what a module defines: (name, type of the node)."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name, type(node)
            case ast.AsyncFunctionDef(name=name):
                yield name, ast.FunctionDef
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name, ast.Name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                yield name, ast.Name


def is_retired(name: str, kind: type[ast.AST]) -> bool:
    bare = name.strip("_")
    parts = {p.lower() for p in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    return bool(
        bare in RETIRED_NAMES
        or parts & RETIRED_WORDS
        or RETIRED_CONSTANTS.match(name)
        or (kind is ast.ClassDef and bare in RETIRED_CLASSES)
        or (kind is ast.FunctionDef and RETIRED_FUNCTIONS.match(name))
    )


def test_every_class_has_a_name_of_its_own() -> None:
    counts = class_names()
    assert len(counts) > 700
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_retired_name_returns() -> None:
    found = {
        (path.relative_to(SOURCES).as_posix(), name)
        for path in SOURCES.rglob("*.py")
        for name, kind in identifiers(tree_of(path))
        if is_retired(name, kind)
    }
    assert sorted(found - KEYS) == []


def test_no_module_has_a_retired_name() -> None:
    assert [path for path in SOURCES.rglob("*.py") if path.stem in RETIRED_MODULES] == []


@pytest.mark.parametrize(
    ("code", "retired"),
    [
        ("class Keeper: pass", ["Keeper"]),
        ("class SeatUse: pass", ["SeatUse"]),
        ("def rate_of(x): pass", ["rate_of"]),
        ("async def refuse_calls(): pass", ["refuse_calls"]),
        ("def open(self, *, told=None): pass", ["told"]),
        ("self._kept, spread_out = 1, 2", ["_kept", "spread_out"]),
        ("for one in range(3): pass", ["one"]),
        ("PATIENCE: float = 1.0", ["PATIENCE"]),
        ("MOST_STEPS = 1", ["MOST_STEPS"]),
        ("def best_of_n(patience, keeper): self.packed = heldout", []),
    ],
)
def test_retired_names_are_found(code: str, retired: list[str]) -> None:
    found = [name for name, kind in identifiers(ast.parse(code)) if is_retired(name, kind)]
    assert sorted(found) == retired


def test_no_test_replaces_a_private_name() -> None:
    """A name that a test replaces is an interface, so it is public."""
    tests = Path(__file__).parent
    found = [
        f"{path.relative_to(tests)}:{node.lineno} {target.value}"
        for path in tests.rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"setattr", "delattr", "setitem"}
        for target in node.args[:2]
        if isinstance(target, ast.Constant)
        and isinstance(target.value, str)
        and re.search(r"(^|\.)_(?!_)", target.value)
    ]
    assert found == []
