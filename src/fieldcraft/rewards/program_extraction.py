"""Extraction of the Python program from an answer.

Fences follow CommonMark as people and models use it: ``` or ~~~ of any length, indented, in lists
and quotations, with a language and attributes, and possibly unclosed.

The last block is the program if it defines everything that it uses. Otherwise it is preceded by the
nearest earlier blocks that define the rest, such as imports and functions. A last block that only
tests the program, or only calls a program that runs on its own, is an example.
"""

from __future__ import annotations

import ast
import builtins
import html
import re
import symtable
import sys
import textwrap
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from fieldcraft.rewards.module_names import find_names_read_first, imports_star

_LINE = re.compile(r"\r\n|\n|\r")
# Text allowed before a fence: indentation, and the markers of quotations and list items.
_MARGIN = r"(?P<margin>(?:[ \t]*(?:>|[-*+]|\d{1,9}[.)])(?=[ \t]|[`~]))*[ \t]*)"
_OPENING = re.compile(rf"{_MARGIN}(?P<fence>`{{3,}}|~{{3,}})(?P<info>.*)")
# CommonMark requires a separate line, but people and models also write "So: ```python".
_INLINE_OPENING = re.compile(
    r"[^`]*[^`\w](?P<margin>)(?P<fence>`{3,})(?P<info>(?:python|py)[\d.]*)\s*", re.IGNORECASE
)
_LANGUAGE = re.compile(r"\s*\{?\s*\.?(?:language-)?([\w+#./-]*)")
_PYTHON = re.compile(r"(?:i?python|py|pypy)[\d.]*|[\w./-]+\.py|sage", re.IGNORECASE)
_SESSION = re.compile(r"pycon|python-?(?:repl|console)")  # lines start with prompts
_PROMPT = re.compile(r"(?:>>>|\.\.\.)(?: |$)")
# Words after a fence that do not name a language.
_UNSPECIFIC_LANGUAGES = ("", "code", "none", "tool_code", "solution")
_TEXT_LANGUAGES = ("text", "txt", "plain", "plaintext")  # mostly output, but sometimes programs
# Other delimiters that people and models put around a program.
_TAGGED = re.compile(
    r"<(?P<tag>answer|code|python|solution|program)(?: [^<>]*)?>(?P<inside>.*?)(?:</(?P=tag)>|\Z)"
    r"|\[PYTHON\](?P<inside2>.*?)(?:\[/PYTHON\]|\Z)",
    re.DOTALL | re.IGNORECASE,
)
# Delimiters of MBPP's prompt. In brackets they would be Python lists.
_MBPP_BEGIN = re.compile(r"\s*\[BEGIN\](.*?)(?:\[(?:DONE|END)\].*)?\Z", re.DOTALL)
_MARKDOWN_LANGUAGES = ("markdown", "md")
_TAB_COLUMNS = 4  # columns
_MAX_TEXT_PARAGRAPHS = 40  # paragraphs of text that may follow a program in an unclosed fence


@dataclass(frozen=True, slots=True)
class FencedBlock:
    """Content of a fenced block. `language` is the first word after the fence, in lower case."""

    language: str
    text: str
    is_closed: bool = True

    @property
    def is_python(self) -> bool:
        return _PYTHON.fullmatch(self.language) is not None


def find_blocks(text: str) -> list[FencedBlock]:
    """Return the fenced blocks of a text, in order. A Markdown block includes the blocks nested in
    it."""
    return [inner for block in _iter_blocks(_LINE.split(text)) for inner in _expand_markdown(block)]


def _expand_markdown(block: FencedBlock) -> list[FencedBlock]:
    return find_blocks(block.text) if block.language in _MARKDOWN_LANGUAGES else [block]


def _iter_blocks(lines: Iterable[str]) -> Iterator[FencedBlock]:
    opening: re.Match[str] | None = None
    inside: list[str] = []
    for line in lines:
        if opening is None:
            opening = _match_opening(line)
        elif _is_closing(opening, line):
            yield _make_block(opening, inside, is_closed=True)
            opening, inside = None, []
        else:
            inside.append(line)
    if opening is not None:
        yield _make_block(opening, inside, is_closed=False)


def _match_opening(line: str) -> re.Match[str] | None:
    """Match a fence that opens a block. Inline code between ``` on one line is not a block."""
    match = _OPENING.fullmatch(line) or _INLINE_OPENING.fullmatch(line)
    return None if match is None or (match["fence"][0] == "`" and "`" in match["info"]) else match


def _is_closing(opening: re.Match[str], line: str) -> bool:
    unmarked = _strip_margin(opening, line)
    depth = len(unmarked) - len(unmarked.lstrip())
    fence = unmarked.strip()
    return depth < 4 and len(fence) >= len(opening["fence"]) and set(fence) == {opening["fence"][0]}


def _make_block(opening: re.Match[str], inside: Iterable[str], is_closed: bool) -> FencedBlock:
    language = _LANGUAGE.match(opening["info"])
    text = "\n".join(_strip_margin(opening, line) for line in inside)
    return FencedBlock(
        language[1].lower() if language else "", f"{text}\n" if text else "", is_closed
    )


def _strip_margin(opening: re.Match[str], line: str) -> str:
    """Return a line of a block without quotation markers and without the indentation of the opening
    fence."""
    for _ in range(opening["margin"].count(">")):
        line = re.sub(r"^[ \t]{0,3}>", "", line)
    width = len(opening["margin"].rpartition(">")[2].expandtabs(_TAB_COLUMNS))
    blanks = len(line) - len(line.lstrip(" \t"))
    start = next(
        (n for n in range(blanks) if len(line[:n].expandtabs(_TAB_COLUMNS)) >= width), blanks
    )
    return line[start:]


# -- programs ----------------------------------------------------------------------------------


def extract_program(answer: str) -> str | None:
    """Return the Python program in an answer, or None.

    It is the last Python block that compiles, together with the earlier blocks that it requires and
    without usage examples (`join_program_parts`). If there is none, blocks without a language and
    then blocks of plain text are searched the same way. The last resorts are a Python block with a
    syntax error and, in an answer without fences, the whole answer, code between tags, indented
    lines, or the last paragraphs. Text that computes nothing, such as the output "5", is not a
    program.
    """
    answer = _MBPP_BEGIN.sub(r"\1", answer.lstrip("\ufeff\u200b"))
    blocks = [_strip_prompts(block) for block in find_blocks(answer)]
    python_blocks = [block for block in blocks if block.is_python]
    unspecific_blocks = [block for block in blocks if block.language in _UNSPECIFIC_LANGUAGES]
    text_blocks = [block for block in blocks if block.language in _TEXT_LANGUAGES]
    for candidates in (python_blocks, unspecific_blocks, text_blocks):
        codes = [
            code
            for block in candidates
            if (code := _extract_code(block) or _extract_constants(block))
        ]
        while codes and not _is_program(codes[-1]):
            codes.pop()
        if codes:
            return join_program_parts(codes)
    for block in reversed(python_blocks):
        if block.text.strip():
            return block.text
    if blocks:
        return None
    return (
        _as_program(answer)
        or _find_tagged(answer)
        or _find_indented(answer)
        or _find_trailing(answer)
    )


def _strip_prompts(block: FencedBlock) -> FencedBlock:
    """Return a block without interpreter prompts: a session becomes the program that was typed."""
    if not _SESSION.fullmatch(block.language):
        return block
    typed = [_PROMPT.sub("", line) for line in block.text.split("\n") if _PROMPT.match(line)]
    return FencedBlock("python", "\n".join(typed) + "\n", block.is_closed)


def _find_tagged(answer: str) -> str | None:
    """Return the last program between tags; in HTML, its characters may be escaped."""
    found = [match["inside"] or match["inside2"] or "" for match in _TAGGED.finditer(answer)]
    texts = [text for inside in reversed(found) for text in (inside, html.unescape(inside))]
    return next((code for text in texts if (code := _as_program(text) or _find_tagged(text))), None)


def _find_trailing(answer: str) -> str | None:
    """Return the program at the end of an answer, after paragraphs of text."""
    paragraphs = "\n".join(_LINE.split(answer)).split("\n\n")
    places = range(max(len(paragraphs) - _MAX_TEXT_PARAGRAPHS, 1), len(paragraphs))
    texts = ("\n\n".join(paragraphs[place:]) for place in places)
    return next((code for text in texts if (code := _as_program(text)) is not None), None)


def _extract_code(block: FencedBlock) -> str | None:
    """Return the program of a block. The closing fence may be at the end of a line, and an unclosed
    block may be followed by text."""
    if (code := _as_program(block.text)) is not None:
        return code
    text, fence, _ = block.text.partition("```")
    if block.is_closed or fence:
        return _as_program(text)
    paragraphs = text.split("\n\n")
    counts = range(len(paragraphs) - 1, max(len(paragraphs) - _MAX_TEXT_PARAGRAPHS, 0), -1)
    cut = ("\n\n".join(paragraphs[:count]) for count in counts)
    return next((code for text in cut if (code := _as_program(text)) is not None), None)


def _extract_constants(block: FencedBlock) -> str | None:
    """Return the text of a block that only binds names, which a later block may require."""
    tree = _parse(text := textwrap.dedent(block.text))
    binds_only = tree is not None and all(
        isinstance(n, ast.Assign | ast.AnnAssign) for n in tree.body
    )
    return text if binds_only else None


def _find_indented(answer: str) -> str | None:
    """Return the last program among the indented blocks of a text without fences."""
    lines = "\n".join(_LINE.split(answer))
    blocks = re.findall(r"(?:\A|\n[ \t]*\n)((?:(?: {4}|\t).*\n?|[ \t]*\n)+)", lines)
    return next(
        (code for text in reversed(blocks) if (code := _as_program(text)) is not None), None
    )


def _as_program(text: str) -> str | None:
    """Return the text, if necessary without its indentation, if it is a program that compiles."""
    return next((code for code in (text, textwrap.dedent(text)) if _is_program(code)), None)


def _is_program(text: str) -> bool:
    """Return whether a text compiles and does something: it calls, defines or imports."""
    tree = _parse(text)
    active_nodes = ast.Call | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    active_nodes |= ast.Import | ast.ImportFrom
    return tree is not None and any(isinstance(node, active_nodes) for node in ast.walk(tree))


def _parse(text: str) -> ast.Module | None:
    """Return the syntax tree of a text that compiles, else None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
            compile(tree, "answer", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree


# -- assembly of one program -------------------------------------------------------------------

_BUILTIN = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
_FUTURE = re.compile(r"^from __future__ import [\w, ]+\n", re.MULTILINE)  # must be at the top
_STDIN_NAMES = frozenset({"input", "stdin", "raw_input"})
_DEFINITION_NODES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class ProgramPart:
    """A Python block that compiles."""

    code: str

    @cached_property
    def _tree(self) -> ast.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(self.code)

    @cached_property
    def _tables(self) -> list[symtable.SymbolTable]:
        def below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
            yield table
            for child in table.get_children():
                yield from below(child)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(below(symtable.symtable(self.code, "answer", "exec")))

    @cached_property
    def defined_names(self) -> frozenset[str]:
        """Names that the block binds at module level."""
        return frozenset(
            symbol.get_name()
            for table in self._tables
            for symbol in table.get_symbols()
            if (symbol.is_assigned() or symbol.is_imported())
            and (table is self._tables[0] or symbol.is_declared_global())
        )

    @cached_property
    def required_names(self) -> frozenset[str]:
        """Names that the block uses but does not define, or uses before it defines them."""
        used = {
            symbol.get_name()
            for table in self._tables
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is self._tables[0] or symbol.is_global())
        }
        required = (used - self.defined_names) | find_names_read_first(self._tree)
        return frozenset(required - _BUILTIN)

    def defines_any(self, names: Collection[str]) -> bool:
        """Return whether the block defines one of the names. All may come from an import of `*`."""
        return bool(names) and (
            imports_star(self._tree.body) or not self.defined_names.isdisjoint(names)
        )

    @cached_property
    def runs_itself(self) -> bool:
        """Return whether the block prints or calls its own definitions at module level."""
        return any(
            (isinstance(node.func, ast.Name) and node.func.id in {"print", *self.defined_names})
            or (isinstance(node.func, ast.Attribute) and node.func.attr == "write")
            for node in _iter_module_level(self._tree)
            if isinstance(node, ast.Call)
        )

    @cached_property
    def reads_stdin(self) -> bool:
        """Return whether the block itself refers to standard input."""
        names = (getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(self._tree))
        return not _STDIN_NAMES.isdisjoint(names)

    @cached_property
    def definitions(self) -> frozenset[str]:
        """Functions and classes that the block defines."""
        return frozenset(
            node.name for node in self._tree.body if isinstance(node, _DEFINITION_NODES)
        )

    @cached_property
    def third_party_imports(self) -> frozenset[str]:
        """Names that the block imports from modules outside the standard library."""
        return frozenset(
            alias.name
            for node in ast.walk(self._tree)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").partition(".")[0] not in sys.stdlib_module_names
            for alias in node.names
        )


def join_program_parts(codes: Sequence[str]) -> str:
    """Return the program composed of Python blocks, each of which compiles."""
    parts = [ProgramPart(code) for code in codes]
    while len(parts) > 1 and _is_example(parts[-1], parts[:-1]):
        parts.pop()
    selected, missing_names = [parts[-1]], parts[-1].required_names
    for part in reversed(parts[:-1]):
        if part.defines_any(missing_names):
            selected.insert(0, part)
            missing_names = (missing_names - part.defined_names) | part.required_names
    if len(selected) == 1:
        return selected[0].code
    code = "\n\n".join(part.code.strip("\n") for part in selected) + "\n"
    return "".join([*_FUTURE.findall(code), _FUTURE.sub("", code)])


def _is_example(part: ProgramPart, previous: Sequence[ProgramPart]) -> bool:
    """Return whether a block only uses or tests definitions of earlier blocks."""
    definitions = frozenset().union(*(p.definitions for p in previous))
    if part.third_party_imports & definitions:
        return True
    is_test = bool(part.definitions) and all(
        name.lower().startswith("test") for name in part.definitions
    )
    used = [p for p in previous if p.defined_names & part.required_names]
    if not used or (part.definitions and not is_test):
        return False
    return is_test or (any(p.runs_itself for p in used) and not part.reads_stdin)


def _iter_module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a program that are outside functions and classes."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, _DEFINITION_NODES | ast.Lambda):
            yield node
            yield from _iter_module_level(node)
