"""Ctrl-C ends a command at any moment."""

import asyncio
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from cli_parts import TINY, status
from fieldcraft.cli import runs, start
from fieldcraft.cli.main import main
from fieldcraft.extensions.external_envs import worker_process
from fieldcraft.extensions.sandbox.backends import container
from fieldcraft.extensions.serving import server
from fieldcraft.runs import seeds
from fieldcraft.runs.agent import Agent
from fieldcraft.runs.event_loop import run_async

SECONDS = 300  # deadline after which a hanging command fails
ATTEMPTS = 8


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    """Restore the handler of Ctrl-C, which a shell disables for background commands."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class WeakTarget:
    """Object that supports weak references."""


def test_an_interrupt_in_the_callback_of_a_weak_reference_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    def drops_it() -> list[str]:
        target = WeakTarget()
        reference = weakref.ref(target, interrupted)
        del target
        gc.collect()
        assert reference() is None
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.01)
        raise AssertionError("the interrupt was lost")

    monkeypatch.setattr(runs, "list_builtin_recipes", drops_it)
    with pytest.raises(SystemExit) as ended:
        main(["recipes"])
    assert ended.value.code != 0


def test_an_interrupt_after_the_last_wait_is_not_lost() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGINT)
        return "done"

    with pytest.raises(KeyboardInterrupt):
        run_async(work())


IMPORTING = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == os.environ["INTERRUPTED_AT"]:
            signal.raise_signal(signal.Signals[os.environ["INTERRUPTED_BY"]])

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
from fieldcraft.cli.start import main
main()
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("module", ["typer", "yaml", "fieldcraft.cli.show", "torch"])
def test_an_interrupt_while_modules_are_imported_is_one_line(module: str, number: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, "check", "smoke"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, "INTERRUPTED_AT": module, "INTERRUPTED_BY": number},
    )
    loading = "Loading torch and transformers ...\n" if module == "torch" else ""
    assert done.stderr == f"{loading}fieldcraft: stopped.\n"
    assert (done.returncode, done.stdout) == (130, "")


def test_an_interrupt_that_python_replaces_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python 3.11 raises RuntimeError instead, as for a class that torch defines."""

    class InterruptedField:
        def __set_name__(self, owner: type, name: str) -> None:
            signal.raise_signal(signal.SIGINT)

    def define_class() -> list[str]:
        try:
            type("Owner", (), {"field": InterruptedField()})
        except KeyboardInterrupt as error:  # of later versions
            raise RuntimeError("a class cannot be defined") from error
        return []

    monkeypatch.setattr(runs, "list_builtin_recipes", define_class)
    assert status("recipes") == 130
    assert capsys.readouterr().err == "fieldcraft: stopped.\n"


INDEXING = """
import signal, sys, tempfile
from fieldcraft.cli import start
from fieldcraft.data import corpora

if sys.argv.pop(1) == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)

def terminate(self, out):
    out.write_text("half")
    signal.raise_signal(signal.SIGTERM)

corpora.CorpusFile.ensure_passages = terminate
start.main()
"""


@pytest.mark.parametrize("interrupts", ["handled", "ignored"])
def test_sigterm_leaves_no_files(interrupts: str, tmp_path: Path) -> None:
    """With Ctrl-C ignored, as in the background of a shell, too."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "a"}\n')
    (tmp_path / "temporary").mkdir()
    arguments = ["index", str(corpus), "--out", str(tmp_path / "index")]
    done = subprocess.run(
        [sys.executable, "-c", INDEXING, interrupts, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "fieldcraft: stopped.\n")
    assert [*(tmp_path / "temporary").iterdir()] == []
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.jsonl", "temporary"}


BLOCKING = """
import asyncio, signal, sys, time
from fieldcraft.cli import runs, start

start.GRACE_SECONDS = 0.1

async def block():
    signal.raise_signal(signal.SIGTERM)
    while True:
        time.sleep(0.01)

runs.list_builtin_recipes = lambda: asyncio.run(block())
sys.argv[1:] = ["recipes"]
start.main()
"""


def test_sigterm_interrupts_work_that_does_not_await() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKING],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "fieldcraft: stopped.\n")


def test_the_second_interrupt_of_sigterm_comes_after_every_cleanup() -> None:
    limits = [
        container._REMOVAL_TIMEOUT_SECONDS,
        worker_process.EXIT_TIMEOUT_SECONDS,
        seeds.EXIT_TIMEOUT_SECONDS,
    ]
    assert max(limits) < start.GRACE_SECONDS


@pytest.mark.parametrize(
    "place", [(server, "bind_socket"), (server, "run_server"), (Agent, "make_streaming_engine")]
)
def test_an_interrupt_while_a_server_starts_is_one_line(
    place: tuple[Any, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Interrupts come when the address is known, before the event loop runs, and while the model
    loads."""
    before = getattr(*place)

    def interrupted(*arguments: Any, **settings: Any) -> Any:
        made = before(*arguments, **settings)
        with closing(made) if place[0] is server else nullcontext():
            signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(*place, interrupted)
    write_tiny_checkpoint(tmp_path, "qwen2", tokenizer=tiny_tokenizer())
    assert status("serve", "agent", "--model", tmp_path, "--dialect", "hermes", "--port", 0) == 130
    written = capsys.readouterr()
    assert written.out.startswith("agent server at http://")
    assert written.err == "fieldcraft: stopped.\n"


def run(out: str) -> None:
    """Run `fieldcraft run smoke --out OUT` in a separate process."""
    sys.stdout = sys.stderr = (Path(out).parent / "output").open("a")
    main(["run", "smoke", *TINY, "--out", out])


@pytest.mark.slow
def test_an_interrupt_at_any_moment_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fieldcraft.cli.main", "fieldcraft.runs.run"])
    rng = random.Random(0)
    out = tmp_path / "run"

    def finished(*, interrupt: bool) -> int:
        process = context.Process(target=run, args=(str(out),))
        process.start()
        if interrupt:
            time.sleep(rng.uniform(1, 6))
        if interrupt and process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGINT)
        process.join(SECONDS)
        assert process.exitcode is not None, "it did not end"
        return process.exitcode

    codes = [finished(interrupt=True) for _ in range(ATTEMPTS)]
    output = (tmp_path / "output").read_text()
    assert set(codes) <= {0, 1, 130}, output[-2000:]
    assert "Traceback" not in output
    assert finished(interrupt=False) == 0
