"""Ways in which a file can be broken, for the tests of error messages about files."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

HUGE = "9" * 400
DEEP = b"[" * 50_000
Break = Callable[[Path], None]


def replaced(content: bytes) -> Break:
    return lambda path: path.write_bytes(content) and None


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbled(path: Path) -> None:
    noise = random.Random(path.name).randbytes(max(path.stat().st_size, 64))
    path.write_bytes(noise)


def in_json(change: Callable[[Any, random.Random], Any]) -> Break:
    """Change one value of a JSON file, or of one line of a JSONL file. Other files become
    garbage."""

    def broken(path: Path) -> None:
        rng = random.Random(path.name)
        try:
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            number = rng.randrange(len(lines))
            lines[number] = json.dumps(change(json.loads(lines[number]), rng))
        except (ValueError, IndexError):
            garbled(path)
        else:
            path.write_text("\n".join(lines) + "\n")

    return broken


def without_a_key(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value:
        key = rng.choice([*value])
        if isinstance(value[key], dict) and rng.random() < 0.5:
            return value | {key: without_a_key(value[key], rng)}
        return {k: v for k, v in value.items() if k != key}
    return {}


def with_another(other: Any) -> Callable[[Any, random.Random], Any]:
    def change(value: Any, rng: random.Random) -> Any:
        match value:
            case dict() if value:
                key = rng.choice([*value])
                return value | {key: change(value[key], rng)}
            case list() if value:
                at = rng.randrange(len(value))
                return [*value[:at], change(value[at], rng), *value[at + 1 :]]
        return other

    return change


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def of_a_later_version(value: Any, rng: random.Random) -> Any:
    """Return the value with unknown keys and a later format version."""
    return {**value, "format": 99, "version": "9.0"} if isinstance(value, dict) else {"format": 99}


BREAKS: dict[str, Break] = {
    "truncated": truncated,
    "empty": replaced(b""),
    "garbage": garbled,
    "a list": replaced(b"[1, 2]\n"),
    "a number": replaced(b"3\n"),
    "no text": replaced(b"\xff\xfe\x00" * 40),
    "nested": replaced(DEEP),
    "without a key": in_json(without_a_key),
    "a string": in_json(with_another("x")),
    "a null": in_json(with_another(None)),
    "a huge number": in_json(with_another(int(HUGE))),
    "a later version": in_json(of_a_later_version),
    "a folder": as_folder,
    "a link to nowhere": as_dangling_link,
    "deleted": Path.unlink,
}
