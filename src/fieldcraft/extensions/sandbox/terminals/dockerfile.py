"""Dockerfiles that only copy files and set the working folder and variables."""

from __future__ import annotations

import io
import json
import posixpath
import re
import shlex
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fieldcraft.records.reading import raise_read_errors
from fieldcraft.types import UserError

FILE_NAME = "Dockerfile"
# The variable that every base image has; here, of the programs of this machine.
BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READ_ONLY = ("/bin", "/dev", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/usr")
_VARIABLE = re.compile(r"\\(\$)|\$(?:(\w+)|\{(\w+)\}|(\{))")
# Quotations of a shell: a $ is text in single quotes and after a backslash.
_QUOTATION = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""")
_FOLDER_MODE = 0o755


@dataclass(frozen=True)
class ImageFiles:
    """Contribution of a Dockerfile to its base image.

    Attributes:
        folder: working folder, an absolute path.
        variables: environment variables.
        archive: tar archive of all files and folders, with paths relative to the root.
    """

    folder: str
    variables: Mapping[str, str]
    archive: bytes


def read_dockerfile(folder: Path) -> ImageFiles:
    """Return the effect of the Dockerfile in a folder, from which it copies.

    Raises UserError for a line that does something else than FROM, COPY, WORKDIR and ENV do.
    """
    path = folder / FILE_NAME
    with raise_read_errors(path, "write the Dockerfile of the task"):
        text = path.read_text("utf-8")
    if (folder / ".dockerignore").exists():
        raise UserError(
            f"{folder} has a .dockerignore, which our own sandbox does not follow: remove it, or"
            " use the backend container."
        )
    build = _Build(path)
    for line, instruction, arguments in split_instructions(text):
        build.add(line, instruction, arguments)
    return build.finish()


def split_instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, instruction in capitals, arguments) of each instruction. Lines that end
    with a backslash are continued, and comments are left out, also between continued lines."""
    start, pieces = 0, [""]
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#") or not stripped:
            continue
        if pieces == [""]:
            start = number
        pieces.append(stripped.removesuffix("\\").rstrip())
        if not stripped.endswith("\\"):
            instruction, _, arguments = " ".join(pieces).strip().partition(" ")
            yield start, instruction.upper(), arguments.strip()
            pieces = [""]
    if pieces != [""]:
        instruction, _, arguments = " ".join(pieces).strip().partition(" ")
        yield start, instruction.upper(), arguments.strip()


@dataclass
class _Build:
    """Interpretation of a Dockerfile."""

    path: Path
    folder: str = "/"
    variables: dict[str, str] = field(default_factory=dict)
    has_base: bool = False
    known_folders: set[str] = field(default_factory=lambda: {"/"})

    def __post_init__(self) -> None:
        self._buffer = io.BytesIO()
        self._archive = tarfile.TarFile(fileobj=self._buffer, mode="w")

    def finish(self) -> ImageFiles:
        self._archive.close()
        if not self.has_base:
            raise UserError(f"{self.path} has no line FROM: name the base image in its first line.")
        return ImageFiles(self.folder, self.variables, self._buffer.getvalue())

    def add(self, line: int, instruction: str, arguments: str) -> None:
        """Follow an instruction. Raises UserError if it needs a container."""
        if instruction == "FROM" and not self.has_base and not arguments.startswith("--"):
            self.has_base = True
            return
        actions = {"COPY": self._copy, "WORKDIR": self._set_folder, "ENV": self._set_variables}
        try:
            if instruction not in actions:
                raise _UnsupportedError("it runs only FROM, COPY, WORKDIR and ENV")
            actions[instruction](arguments)
        except _UnsupportedError as error:
            step = f"{instruction} {arguments}"[:80]
            raise UserError(
                f"our own sandbox cannot follow line {line} of {self.path} ({step}: {error}): use"
                " the backend container."
            ) from error

    def _set_folder(self, arguments: str) -> None:
        self.folder = self._resolve(self._expand(" ".join(_split_words(arguments))))
        self._add_folders(self.folder)

    def _set_variables(self, arguments: str) -> None:
        words = _split_words(arguments)
        if "=" not in words[0]:  # the old form, ENV NAME VALUE
            name, _, value = arguments.partition(" ")
            words = [f"{name}={value.strip()}"]
        assigned = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not name:
                raise _UnsupportedError(f"'{word}' is no NAME=VALUE")
            assigned[name] = self._expand(value)
        self.variables |= assigned

    def _copy(self, arguments: str) -> None:
        words = _parse_list(arguments) if arguments.startswith("[") else _split_words(arguments)
        if len(words) < 2 or words[0].startswith("--"):
            raise _UnsupportedError("it copies SOURCE... DESTINATION without flags")
        *patterns, destination = map(self._expand, words)
        sources = [path for pattern in patterns for path in self._find(pattern)]
        is_folder = destination.endswith(("/", "/.")) or destination in (".", "..")
        target = self._resolve(destination)
        if len(sources) > 1 and not is_folder:
            raise _UnsupportedError("several sources need a folder, which ends with /")
        for source in sources:
            if source.is_dir() and not source.is_symlink():
                self._add_tree(source, target)
            elif is_folder or target in self.known_folders:
                self._add_file(source, posixpath.join(target, source.name))
            else:
                self._add_file(source, target)

    def _find(self, pattern: str) -> list[Path]:
        """Return the files and folders of a pattern, which are inside the folder."""
        root = self.path.parent.resolve()
        relative = pattern.strip("/") or "."
        try:
            found = sorted(root.glob(relative)) if set("*?[") & set(relative) else [root / relative]
            is_inside = all(path.resolve().is_relative_to(root) for path in found)
        except (ValueError, OSError, RuntimeError) as error:  # NUL, **.txt, a link to itself
            raise _UnsupportedError(f"'{pattern}' is no path ({error})") from error
        if not is_inside:
            raise _UnsupportedError("it leads out of the folder")
        if not all(path.exists() for path in found) or not found:
            raise UserError(f"{self.path} copies '{pattern}', which does not exist: add it.")
        return found

    def _add_tree(self, source: Path, target: str) -> None:
        self._add_folders(target)
        for path in sorted(source.iterdir()):
            inner = posixpath.join(target, path.name)
            if path.is_dir() and not path.is_symlink():
                self._add_tree(path, inner)
            else:
                self._add_file(path, inner)

    def _add_file(self, source: Path, target: str) -> None:
        self._add_folders(posixpath.dirname(target))
        with raise_read_errors(source, "correct the files of the task"):
            self._archive.add(source, arcname=target.lstrip("/"), recursive=False)

    def _add_folders(self, folder: str) -> None:
        """Add a folder and its parents."""
        if folder.startswith(tuple(f"{path}/" for path in _READ_ONLY)) or folder in _READ_ONLY:
            raise _UnsupportedError(f"{folder} is read-only there")
        if folder in self.known_folders:
            return
        self._add_folders(posixpath.dirname(folder))
        self.known_folders.add(folder)
        item = tarfile.TarInfo(folder.lstrip("/"))
        item.type, item.mode = tarfile.DIRTYPE, _FOLDER_MODE
        self._archive.addfile(item)

    def _resolve(self, path: str) -> str:
        resolved = posixpath.normpath(posixpath.join(self.folder, path))
        return resolved.replace("//", "/", 1) if resolved.startswith("//") else resolved

    def _expand(self, text: str) -> str:
        """Replace $NAME and ${NAME} by the value of the variable, "" if it is not set."""
        known = {"PATH": BASE_PATH, **self.variables}

        def get(match: re.Match[str]) -> str:
            escaped, plain, braced, other = match.groups()
            if other:
                raise _UnsupportedError("it expands only $NAME and ${NAME}")
            return escaped or known.get(plain or braced, "")

        return _VARIABLE.sub(get, text)


class _UnsupportedError(Exception):
    """A line needs a container; the message says why."""


def _parse_list(arguments: str) -> Sequence[str]:
    try:
        words = json.loads(arguments)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _UnsupportedError("its list is not JSON") from error
    if not all(isinstance(word, str) for word in words):
        raise _UnsupportedError("its list has something else than texts")
    return [str(word) for word in words]


def _split_words(arguments: str) -> Sequence[str]:
    """Return the words of a line, in which a $ that is text has a backslash."""
    try:
        words = shlex.split(_QUOTATION.sub(_escape_signs, arguments))
    except ValueError as error:
        raise _UnsupportedError(f"{error}") from error
    if not words:
        raise _UnsupportedError("it has no arguments")
    return words


def _escape_signs(quotation: re.Match[str]) -> str:
    text = quotation[0]
    if text == r"\$":
        return r"'\$'"
    return text.replace("$", r"\$") if text.startswith("'") else text
