"""Faults of files, permissions, disks and servers, and the advice that is given about them."""

import random
import re
import shlex
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broken_files import BREAKS
from cli_parts import status
from fieldcraft.cli.main import main
from fieldcraft.runs import training
from fieldcraft.types import UserError
from modes import modes_hold
from small_disk import small_disk
from tiny_runs import run_tiny

PASSAGES = '{"id": "%d", "title": "Film %d", "text": "Ada made film %d."}\n'
RL = (
    "stages.two={type: rl, start_from: one, steps: 1, questions_per_step: 1, group_size: 2,"
    " optim: {lr: 1.0e-5}}"
)
OPTIONS = ("tools=[search]", "search.top_k=1", "budget.max_context_tokens=600", RL)
LEFT = (".lock", ".tantivy-meta.lock", ".tantivy-writer.lock")  # they are empty
SIZES = (0, 300, 3000, 30_000)  # of disks that are full
NO_FILE = re.compile(r"\bdelet|\brm\b|remove (it|the (file|folder|line|run))\b")
RENAMED = re.compile(r"rename (\S+) to ([^\s,.;]\S*?)(?=[,.;]?(?: |$))")
CHANGED = re.compile(r"run '(chmod [^']*(?:'[^' ]+')?)' and")
RESTORED = re.compile(
    r"restore|again|correct|fix|give|make room|choose|start|raise the limit|use |build|put"
    r"|write one|convert it|let 'fieldcraft run'|set the"
)


@dataclass(frozen=True)
class Fault:
    """What is done to a file or folder below a home, and the command that meets it."""

    name: str
    path: str  # "" for none
    spoil: Callable[[Path], object]
    command: list[str]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # in which it is run
    stays: Callable[[], AbstractContextManager[Any]] = nullcontext  # once the advice is followed


class Home:
    """A folder with a tiny model, data, an index, a finished run, one that something stopped after
    its last step, and an exported agent. It is always at the same place: a run knows its files."""

    def __init__(self, folder: Path) -> None:
        self.path, self.kept = folder / "home", folder / "kept"
        self.path.mkdir()
        corpus = self.path / "corpus.jsonl"
        corpus.write_text("".join(PASSAGES % (i, i, i) for i in range(4)))
        run_tiny(self.path, *OPTIONS, f"corpus={corpus}")
        self._stop_a_run()
        assert status(*self.command("index")) == 0
        assert status(*self.command("export", "exported")) == 0
        shutil.copytree(self.path, self.kept)

    def _stop_a_run(self) -> None:
        write = training.write_json

        def stop(path: Path, value: Any) -> None:
            if path.parent.name == "two":
                raise UserError("stopped.")
            write(path, value)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "write_json", stop)
            assert status(*self.command("run", "half")) == 2

    def command(self, name: str, at: str = "") -> list[str]:
        """The arguments of a command about what is `at` a place below the home."""
        path = {key: str(self.path / key) for key in ("out", "index", "corpus.jsonl", "new")}
        place = str(self.path / at) if at else path["out"]
        data = {"model": "model", "tasks": "tasks.jsonl", "demonstrations": "shown.jsonl"}
        data |= {"corpus": "corpus.jsonl"}
        given = [f"{key}={self.path / file}" for key, file in data.items()]
        recipe = [str(self.path / "tiny.yaml"), *given, *OPTIONS]
        out = ["--out", path["new"]]
        commands = {
            "run": ["run", *recipe, "--out", place],
            "check": ["check", *recipe],
            "ask": ["ask", "Who is 1?", "--model", place],
            "eval": ["eval", "--model", place, "--tasks", str(self.path / "tasks.jsonl"), *out],
            "show": ["show", place],
            "export": ["export", path["out"], "--out", place if at else path["new"]],
            "compare": ["compare", place, f"{path['out']}/one", "--out", f"{path['new']}.html"],
            "index": ["index", path["corpus.jsonl"], "--out", path["index"]],
            "search": ["ask", "Who is 1?", "--model", path["out"], "--index", path["index"]],
        }
        return commands[name]

    def restore_all(self) -> None:
        """Everything as it was."""
        for folder in (self.path, *self.path.rglob("*")):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(0o700)
        shutil.rmtree(self.path)
        shutil.copytree(self.kept, self.path)

    def restore(self, path: str) -> None:
        """One file or folder as it was."""
        here, before = self.path / path, self.kept / path
        if here.is_dir() and not here.is_symlink():
            here.chmod(0o700)
            shutil.rmtree(here)
        else:
            here.unlink(missing_ok=True)
        copy = shutil.copytree if before.is_dir() else shutil.copy2
        copy(before, here)

    def files(self) -> list[str]:
        found = (p for p in self.kept.rglob("*") if p.is_file() and p.name not in LEFT)
        return sorted(str(p.relative_to(self.kept)) for p in found)


def readers(path: str) -> list[tuple[str, str]]:
    """Commands that read what is at a path, with the place that they are about."""
    top = path.partition("/")[0]
    match top:
        case "out":
            agent = [("ask", ""), ("eval", ""), ("export", "")]
            read_sentences = [("show", ""), ("compare", ""), ("run", "out")]
            return (
                [*agent, *read_sentences]
                if path.count("/") < 2
                else [*agent, ("run", "out"), *read_sentences]
            )
        case "half":
            return [("run", "half")]
        case "index":
            return [("search", ""), ("index", "")]
        case "exported":
            return [("ask", "exported"), ("eval", "exported")]
        case "model":
            return [("check", ""), ("run", "new"), ("run", "half"), ("ask", "model")]
        case "tasks.jsonl":
            return [("check", ""), ("run", "half"), ("eval", "")]
        case "corpus.jsonl":
            return [("check", ""), ("run", "half"), ("index", "")]
    return [("check", ""), ("run", "half"), ("run", "new")]


def of_a_file(home: Home, rng: random.Random) -> Fault:
    tops = sorted({file.partition("/")[0] for file in home.files()})
    top = rng.choice(tops)
    path = rng.choice([file for file in home.files() if file.partition("/")[0] == top])
    how = rng.choice([*BREAKS])
    return Fault(how, path, BREAKS[how], home.command(*rng.choice(readers(path))))


def of_a_folder(home: Home, rng: random.Random) -> Fault:
    """A folder that is gone, or a file in its place."""
    path = rng.choice([f for f in _folders(home) if f not in ("out", "half")])

    def is_a_file(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.write_text("text\n")

    how = rng.choice([shutil.rmtree, is_a_file])
    return Fault(how.__name__, path, how, home.command(*rng.choice(readers(path))))


def _folders(home: Home) -> list[str]:
    return sorted({str(above) for f in home.files() for above in Path(f).parents} - {"."})


def of_a_mode(home: Home, rng: random.Random) -> Fault:
    """What may not be read, or a folder in which nothing may be written."""
    path = rng.choice([*home.files(), *_folders(home) * 3])
    mode = rng.choice([0o000, 0o200, 0o500] if path in _folders(home) else [0o000, 0o200])
    command = home.command(*rng.choice(readers(path)))
    change = partial(Path.chmod, mode=mode)
    return Fault(f"mode {mode:o}", path, change, command, modes_hold, modes_hold)


def of_a_disk(home: Home, rng: random.Random) -> Fault:
    """No file grows beyond a size, as on a full disk."""
    size = rng.choice(SIZES)
    writers = [("run", "half"), ("run", "new"), ("eval", ""), ("export", ""), ("compare", "")]
    command = home.command(*rng.choice(writers))
    return Fault(f"disk {size}", "", lambda _: None, command, lambda: small_disk(size))


FAULTS = (of_a_file, of_a_file, of_a_mode, of_a_file, of_a_folder, of_a_mode, of_a_disk)


def draw(home: Home, seed: int) -> Fault:
    return FAULTS[seed % len(FAULTS)](home, random.Random(seed))


def ended(command: list[str]) -> object:
    """How a command ended: with a status, or with an exception that the user would see."""
    try:
        main(command)
    except SystemExit as end:
        return end.code
    except Exception:  # noqa: BLE001 - it is what the test looks for
        return traceback.format_exc()
    return 0


def read_sentences(error: str, command: list[str]) -> list[str]:
    """The sentences on stderr: one, or in what looks at everything at once, maybe several."""
    lines = error.splitlines()
    assert lines, error
    assert all(line.startswith("fieldcraft: ") for line in lines), error
    assert command[0] in ("check", "run") or len(lines) == 1, error
    assert not NO_FILE.search(error), error
    assert all(line.endswith(".") for line in lines), error
    return [line.removeprefix("fieldcraft: ") for line in lines]


def follow(sentences: list[str], home: Home, fault: Fault) -> Iterator[list[str]]:
    """Do what sentences advise; gives the commands that they advise to run before."""
    said = " ".join(sentences)
    renamed, changed = RENAMED.findall(said), CHANGED.findall(said)
    for old, new in dict(renamed).items():
        assert Path(old).is_relative_to(home.path), said
        Path(old).rename(Path(old).with_name(new))
    for change in dict.fromkeys(changed):
        _, mode, path = shlex.split(change)
        assert Path(path).is_relative_to(home.path), said
        bits = sum({"r": 0o444, "w": 0o222, "x": 0o111}[letter] for letter in mode.split("+")[1])
        Path(path).chmod(Path(path).stat().st_mode | bits & 0o700)
    if not renamed and not changed:
        assert RESTORED.search(said), f"no remedy: {said}"
        if fault.path:
            home.restore(fault.path)
    if "build it anew with 'fieldcraft index'" in said:
        yield home.command("index")
    if "recipe again" in said or "'fieldcraft run'" in said:
        run = next((r for r in ("out", "half", "new") if f"{home.path / r}" in said), "out")
        yield home.command("run", run)
