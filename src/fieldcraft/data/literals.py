"""Lists, objects and truth values written as text: in JSON, or in Python or numpy syntax.

A CSV has no lists, and programs that write tables often convert a list to text. Nothing is
evaluated, and text that is not entirely in one of these forms stays text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.records.jsonl import DuplicateKeyDecoder

# Keys whose values are lists or objects in every format that uses them.
_STRUCTURED_KEYS = (
    "metadata",
    "reward_model",
    "extra_info",
    "supporting_facts",
    "question_decomposition",
    "paragraphs",
    "context",
    "ctxs",
    "info",
    "test_list",
    "test_imports",
)
_MESSAGE_KEYS = ("prompt", "messages", "conversations")  # lists of objects, or plain text
_TRUTH_VALUE_KEYS = ("answerable", "is_impossible")
_TRUTH_VALUES: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}

_STRING = r"\"[^\"\\]*+(?:\\.[^\"\\]*+)*\"|'[^'\\]*+(?:\\.[^'\\]*+)*'"
_NUMBER = r"[-+]?(?:\d[\d_]*+(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
_NOTHING = r"None|null|nan|NaN|<NA>"
_PLAIN = rf"(?:{_STRING}|{_NUMBER}|{_NOTHING}|[Tt]rue|[Ff]alse)"
_ITEM = rf"(?:{_PLAIN}|np\.\w+\({_PLAIN}\))"
_ITEMS = re.compile(_ITEM, re.DOTALL)
# Separated by commas, or only by white space, as numpy prints an array.
_BODY = rf"\s*+(?:{_ITEM}(?:\s*,\s*{_ITEM})*\s*,?|{_ITEM}(?:\s+{_ITEM})*)?\s*"
_LIST = re.compile(
    rf"(?:\[(?P<list>{_BODY})\]|\((?P<tuple>{_BODY})\)|\{{(?P<set>{_BODY})\}}"
    rf"|array\(\[(?P<array>{_BODY})\](?:,\s*dtype=[^()]*)?\))",
    re.DOTALL,
)


def parse_list_items(text: str) -> list[str] | None:
    """Return the items of a flat list written as text, each as text, or None for any other text.
    Numbers are not reformatted, and empty items are left out."""
    found = _LIST.fullmatch(text.strip())
    if found is None:
        return None
    body = next(part for part in found.groups() if part is not None)
    items = _split_items(body)
    if found["tuple"] is not None and len(items) < 2 and not body.rstrip().endswith(","):
        return None  # one text in parentheses
    return [_unquote(item) for item in items if not re.fullmatch(_NOTHING, item)]


def parse_string_list(text: str) -> list[str] | None:
    """Return the items of a list of quoted strings written as text. Return None for any other text,
    such as [1, 2], which may be an answer in mathematics."""
    items = parse_list_items(text)
    quoted = (item[0] in "\"'" or re.fullmatch(_NOTHING, item) for item in _split_items(text))
    return items if items and all(quoted) else None


def _split_items(text: str) -> list[str]:
    """Return the items as written, without enclosing numpy types."""
    return [
        re.sub(r"^np\.\w+\((.*)\)$", r"\1", item, flags=re.DOTALL) for item in _ITEMS.findall(text)
    ]


def _unquote(item: str) -> str:
    if item[0] not in "\"'":
        return item
    if item[0] == '"':  # JSON and Python differ in escapes
        try:
            return str(json.loads(item, strict=False))
        except ValueError:
            pass
    try:
        return str(ast.literal_eval(item))
    except (ValueError, SyntaxError):
        return item[1:-1]


def parse_value(text: str) -> Any:
    """Return the list or object that the text represents, in JSON or Python syntax; otherwise, or
    if a key is repeated, return the text."""
    if not text.lstrip().startswith(("[", "{")):
        return text
    decoder = DuplicateKeyDecoder()
    for read in (decoder.decode, _parse_literal):
        try:
            found = read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return found if isinstance(found, list | dict) and not decoder.duplicates else text
    return text


def _parse_literal(text: str) -> Any:
    """Return the value of a Python literal. Raises ValueError for any other text."""
    return ast.literal_eval(_LiteralNormaliser().visit(ast.parse(text, mode="eval")))


class _LiteralNormaliser(ast.NodeTransformer):
    """Transformer of numpy arrays to lists, of numpy scalars to values, and of nan to None."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name(id="array"), args=[ast.List() as items]):
                return self.generic_visit(items)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="np")), args=[ast.Constant() as scalar]
            ):
                return scalar
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(None) if node.id in ("nan", "NaN") else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node.value is ...:
            raise ValueError("items are left out")
        return node


def parse_text_values(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record in which values of structured keys that are written as text are parsed."""
    changed = {}
    for key in _STRUCTURED_KEYS:
        if isinstance(text := record.get(key), str):
            changed[key] = parse_value(text)
    for key in _MESSAGE_KEYS:
        if isinstance(text := record.get(key), str) and _are_objects(found := parse_value(text)):
            changed[key] = found
    for key in _TRUTH_VALUE_KEYS:
        if isinstance(text := record.get(key), str):
            changed[key] = _TRUTH_VALUES.get(text.strip().lower(), text)
    return record | changed if changed else record


def _are_objects(found: Any) -> bool:
    return isinstance(found, Sequence) and all(isinstance(item, dict) for item in found)
