"""Faults of files, permissions, disks and servers, and the advice in their messages."""

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
SIZES = (0, 300, 3000, 30_000)  # of full disks
NO_FILE = re.compile(r"\bdelet|\brm\b|remove (it|the (file|folder|line|run))\b")
RENAMED = re.compile(r"rename (\S+) to ([^\s,.;]\S*?)(?=[,.;]?(?: |$))")
CHANGED = re.compile(r"run '(chmod [^']*(?:'[^' ]+')?)' and")
RESTORED = re.compile(
    r"restore|again|correct|fix|give|free disk space|choose|start|raise the limit|use |build|put"
    r"|write one|convert it|resume it with|set the"
)


@dataclass(frozen=True)
class Fault:
    """Fault applied to a file or folder below a home, and the command that encounters it."""

    name: str
    path: str  # "" for none
    spoil: Callable[[Path], object]
    command: list[str]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # context of the command
    stays: Callable[[], AbstractContextManager[Any]] = nullcontext  # after the advice is followed


class Home:
    """Folder with a tiny model, data, an index, a finished run, a run that was stopped after its
    last step, and an exported agent. It always has the same path, because a run stores the paths of
    its files."""

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
        """Return the arguments of a command for the path `at` below the home."""
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
        """Restore the original files."""
        for folder in (self.path, *self.path.rglob("*")):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(0o700)
        shutil.rmtree(self.path)
        shutil.copytree(self.kept, self.path)

    def restore(self, path: str) -> None:
        """Restore one file or folder."""
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
    """Return commands that read a path, with the path that their messages name."""
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
    """Yield faults of a folder: missing, or a file in its place."""
    path = rng.choice([f for f in _folders(home) if f not in ("out", "half")])

    def is_a_file(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.write_text("text\n")

    how = rng.choice([shutil.rmtree, is_a_file])
    return Fault(how.__name__, path, how, home.command(*rng.choice(readers(path))))


def _folders(home: Home) -> list[str]:
    return sorted({str(above) for f in home.files() for above in Path(f).parents} - {"."})


def of_a_mode(home: Home, rng: random.Random) -> Fault:
    """Yield faults of permissions: unreadable files, unwritable folders."""
    path = rng.choice([*home.files(), *_folders(home) * 3])
    mode = rng.choice([0o000, 0o200, 0o500] if path in _folders(home) else [0o000, 0o200])
    command = home.command(*rng.choice(readers(path)))
    change = partial(Path.chmod, mode=mode)
    return Fault(f"mode {mode:o}", path, change, command, modes_hold, modes_hold)


def of_a_disk(home: Home, rng: random.Random) -> Fault:
    """Limit the size of files, as on a full disk."""
    size = rng.choice(SIZES)
    writers = [("run", "half"), ("run", "new"), ("eval", ""), ("export", ""), ("compare", "")]
    command = home.command(*rng.choice(writers))
    return Fault(f"disk {size}", "", lambda _: None, command, lambda: small_disk(size))


FAULTS = (of_a_file, of_a_file, of_a_mode, of_a_file, of_a_folder, of_a_mode, of_a_disk)


def draw(home: Home, seed: int) -> Fault:
    return FAULTS[seed % len(FAULTS)](home, random.Random(seed))


def ended(command: list[str]) -> object:
    """Return how a command ended: its status, or an exception that the user would see."""
    try:
        main(command)
    except SystemExit as end:
        return end.code
    except Exception:  # noqa: BLE001 - the exception that the test is about
        return traceback.format_exc()
    return 0


def read_sentences(error: str, command: list[str]) -> list[str]:
    """Return the sentences on stderr: one, or possibly several from a command that checks
    everything."""
    lines = error.splitlines()
    assert lines, error
    assert all(line.startswith("fieldcraft: ") for line in lines), error
    assert command[0] in ("check", "run") or len(lines) == 1, error
    assert not NO_FILE.search(error), error
    assert all(line.endswith(".") for line in lines), error
    return [line.removeprefix("fieldcraft: ") for line in lines]


def follow(sentences: list[str], home: Home, fault: Fault) -> Iterator[list[str]]:
    """Follow the advice of sentences; return the commands that they say to run first."""
    text = " ".join(sentences)
    renamed, changed = RENAMED.findall(text), CHANGED.findall(text)
    for old, new in dict(renamed).items():
        assert Path(old).is_relative_to(home.path), text
        Path(old).rename(Path(old).with_name(new))
    for change in dict.fromkeys(changed):
        _, mode, path = shlex.split(change)
        assert Path(path).is_relative_to(home.path), text
        bits = sum({"r": 0o444, "w": 0o222, "x": 0o111}[letter] for letter in mode.split("+")[1])
        Path(path).chmod(Path(path).stat().st_mode | bits & 0o700)
    if not renamed and not changed:
        assert RESTORED.search(text), f"no remedy: {text}"
        if fault.path:
            home.restore(fault.path)
    if "rebuild it with 'fieldcraft index'" in text:
        yield home.command("index")
    if "recipe again" in text or "'fieldcraft run'" in text:
        run = next((r for r in ("out", "half", "new") if f"{home.path / r}" in text), "out")
        yield home.command("run", run)
