"""Terminals of every backend: commands, files, limits, and what is left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from fieldcraft.extensions.sandbox.terminals.base import (
    MAX_PROCESSES,
    OUTPUT_BYTES,
    Terminal,
    TerminalBackend,
    TerminalError,
    TerminalImage,
    TerminalResult,
)
from fieldcraft.extensions.sandbox.terminals.containers import ContainerTerminals
from fieldcraft.extensions.sandbox.terminals.local import LocalTerminals
from fieldcraft.extensions.sandbox.terminals.tool import make_bash_tool
from fieldcraft.types import ToolError, UserError

T = TypeVar("T")
Opened = tuple[TerminalBackend, TerminalImage]
LONG = 300.0


def use(opened: Opened, work: Callable[[Terminal], Awaitable[T]]) -> T:
    async def run() -> T:
        backend, image = opened
        async with backend.open_terminal(image) as terminal:
            return await work(terminal)

    return asyncio.run(run())


def run(opened: Opened, *commands: str, seconds: float = LONG) -> list[TerminalResult]:
    """Run commands one after the other in one terminal."""

    async def work(terminal: Terminal) -> list[TerminalResult]:
        return [await terminal.run(("bash", "-c", line), seconds) for line in commands]

    return use(opened, work)


def test_commands_share_files(opened: Opened) -> None:
    look = "pwd; cat words.txt; echo $GREETING $LEVEL"
    results = run(opened, look, "echo x > y", "cat y; exit 3")
    assert [(done.exit_code, done.output) for done in results] == [
        (0, "/app\nbird\nhello high\n"),
        (0, ""),
        (3, "x\n"),
    ]


def test_a_longer_path(local: Opened) -> None:
    _, image = local
    assert image.folder is not None
    with (image.folder / "Dockerfile").open("a") as file:
        file.write('ENV PATH="/app/bin:$PATH"\n')
    [done] = run((LocalTerminals(), image), "ls; echo ${PATH%%:*}")
    assert done.output == "words.txt\n/app/bin\n"


def test_a_command_that_no_system_takes(opened: Opened) -> None:
    def call(terminal: Terminal) -> Awaitable[str]:
        return make_bash_tool(terminal, LONG)(command="echo \0")

    with pytest.raises(ToolError, match="cannot have a NUL character"):
        use(opened, call)


def test_terminals_share_nothing(opened: Opened) -> None:
    run(opened, "echo x > /app/y; echo x > /tmp/y")
    [done] = run(opened, "ls /app /tmp")
    assert done.output == "/app:\nwords.txt\n\n/tmp:\n"


def test_an_input_that_is_not_read(opened: Opened) -> None:
    def work(terminal: Terminal) -> Awaitable[TerminalResult]:
        return terminal.run(("sh", "-c", "seq 100000 | head -n 1"), LONG, bytes(2**20))

    assert use(opened, work) == TerminalResult(0, "1\n")


def test_both_streams_and_bytes_that_are_no_text(opened: Opened) -> None:
    [done] = run(opened, r"echo out; echo err >&2; printf '\xff\n' > /dev/stderr")
    assert done.output == "out\nerr\n\ufffd\n"


def test_a_long_output_keeps_its_ends(opened: Opened) -> None:
    [done] = run(opened, "seq 100000")
    assert done.output.startswith("1\n2\n")
    assert done.output.endswith("99999\n100000\n")
    assert done.omitted_bytes == 588_895 - OUTPUT_BYTES


def test_input_and_variables(opened: Opened) -> None:
    def work(terminal: Terminal) -> Awaitable[TerminalResult]:
        command = ("sh", "-c", "cat; echo $LEVEL")
        return terminal.run(command, LONG, b"given\n" * 20_000, {"LEVEL": "low"})

    done = use(opened, work)
    assert done.output.startswith("given\n")
    assert done.output.endswith("given\nlow\n")


def test_a_command_that_does_not_exist(opened: Opened) -> None:
    def work(terminal: Terminal) -> Awaitable[TerminalResult]:
        return terminal.run(("no-such-command",), LONG)

    assert use(opened, work).exit_code == 127


def test_a_command_without_an_end(opened: Opened) -> None:
    endless, after = run(opened, "echo begun; sleep 1000 & sleep 1000", "echo after", seconds=2)
    assert (endless.exit_code, endless.output) == (None, "begun\n")
    assert (after.exit_code, after.output) == (0, "after\n")


def test_a_cancelled_command_is_ended(opened: Opened) -> None:
    async def work(terminal: Terminal) -> TerminalResult:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await terminal.run(("sleep", "1000"), LONG)
        return await terminal.run(("sh", "-c", "echo after"), LONG)

    assert use(opened, work) == TerminalResult(0, "after\n")


WAIT = "while [ ! -f done ]; do sleep 0.05; done; cat done"


def test_background_processes_go_on(opened: Opened) -> None:
    begin = "(while [ ! -f go ]; do sleep 0.05; done; echo yes > done) > log 2>&1 & echo begun"
    started, found = run(opened, begin, f"echo > go; {WAIT}")
    assert (started.output, found.output) == ("begun\n", "yes\n")


def test_background_processes_that_print(local: Opened) -> None:
    begin = "(while [ ! -f go ]; do sleep 0.05; done; echo noise; echo yes > done) & echo begun"
    started, found = run(local, begin, f"echo > go; {WAIT}")
    assert (started.output, found.output) == ("begun\n", "yes\n")


def test_root_without_power(opened: Opened) -> None:
    [done] = run(opened, "id -u; echo x > /root/x && echo x > /etc/x && cat /root/x /etc/x")
    assert done.output == "0\nx\nx\n"


def test_no_network_but_the_own_one(opened: Opened) -> None:
    lines = (
        "echo > /dev/tcp/192.0.2.1/80",
        "echo > /dev/tcp/127.0.0.1/9",
    )
    outside, inside = run(opened, *lines)
    assert "Network is unreachable" in outside.output
    assert "Connection refused" in inside.output


def test_commands_one_at_a_time(opened: Opened) -> None:
    async def work(terminal: Terminal) -> Sequence[TerminalResult]:
        line = "if [ -e busy ]; then echo both; fi; echo > busy; sleep 0.1; rm busy"
        jobs = [terminal.run(("bash", "-c", line), LONG) for _ in range(3)]
        return await asyncio.gather(*jobs)

    assert {done.output for done in use(opened, work)} == {""}


# -- our own sandbox ---------------------------------------------------------------------------


ESCAPES = {
    "the programs of the machine": "echo x > /usr/bin/x",
    "another namespace": "unshare --user --map-root-user true",
    "a mount": "mount -t tmpfs none /mnt",
    "an owner": "chown 1 words.txt",
    "the first process": "cat /proc/1/environ /proc/1/maps",
    "its descriptors": "ls /proc/1/fd",
    "a device": "mknod disk b 8 0",
    "the kernel": "echo 1 > /proc/sys/kernel/sysrq",
}


@pytest.mark.parametrize("attempt", ESCAPES)
def test_it_cannot_change(local: Opened, attempt: str) -> None:
    [done] = run(local, f"{ESCAPES[attempt]} && echo succeeded")
    assert done.exit_code != 0
    assert "succeeded" not in done.output


def test_it_does_not_see_the_host(local: Opened, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    lines = f"cat {secret}; echo ${{HOME}}; ls /proc | grep -c '^[0-9]'; kill -0 {os.getpid()}"
    [done] = run(local, lines)
    assert "No such file or directory" in done.output
    assert "/root\n" in done.output
    assert "No such process" in done.output


def test_it_cannot_end_its_first_process(local: Opened) -> None:
    killed, after = run(local, "kill -9 1; kill -TERM 1; true", "echo after")
    assert (killed.exit_code, after.output) == (0, "after\n")


def test_disk_and_memory_are_limited(local: Opened) -> None:
    backend, image = local
    small = backend, replace(image, disk_mb=4, memory_mb=64)
    disk, memory = run(
        small, "head -c 8M /dev/zero > file", "x=$(head -c 200M /dev/zero | tr '\\0' a); echo ${#x}"
    )
    assert "No space left on device" in disk.output
    assert "200000000" not in memory.output
    assert memory.exit_code != 0


def test_files_that_do_not_fit(local: Opened) -> None:
    _, image = local
    assert image.folder is not None
    (image.folder / "words.txt").write_bytes(bytes(3 * 2**20))
    other = LocalTerminals(disk_mb=2), image
    with pytest.raises(
        TerminalError, match=r"The files of the terminal cannot be unpacked \(tar: "
    ):
        run(other, "true")


def test_an_image_of_an_engine(local: Opened) -> None:
    image = TerminalImage(name="a task", folder=None, docker_image="python:3.11")
    with pytest.raises(UserError, match=r"a task needs the image 'python:3\.11'"):
        local[0].check_image(image)


# -- containers --------------------------------------------------------------------------------


def test_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="backend container of terminals needs docker or podman"):
        ContainerTerminals()


@pytest.mark.long
def test_images_are_built(base_image: tuple[str, str], tmp_path: Path) -> None:
    engine, base = base_image
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN echo built > /built\n")
    image = TerminalImage(name="a task", folder=tmp_path)
    [done] = run((ContainerTerminals(engine), image), "cat /built")
    assert done.output == "built\n"
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN echo again > /built\n")
    [done] = run((ContainerTerminals(engine), image), "cat /built")
    assert done.output == "again\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "seconds", "cause"),
    [("RUN false", LONG, "cannot be built"), ("RUN sleep 1000", 3.0, "build_timeout_sec of 3 s")],
)
def test_images_that_are_not_built(
    base_image: tuple[str, str], tmp_path: Path, line: str, seconds: float, cause: str
) -> None:
    engine, base = base_image
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\n{line}\n")
    image = TerminalImage(name="a task", folder=tmp_path, build_seconds=seconds)
    with pytest.raises(TerminalError, match=cause):
        run((ContainerTerminals(engine), image), "true")


FORK = """
import os, signal
children = 0
try:
    while children < 2000:
        if os.fork() == 0:
            signal.pause()
        children += 1
except BlockingIOError:
    print(children)
"""


def test_the_number_of_processes_is_limited(local: Opened) -> None:
    """Two terminals at once have the whole number each."""

    async def count(terminal: Terminal) -> int:
        return int((await terminal.run(("python3", "-c", FORK), LONG)).output)

    async def count_in_two() -> list[int]:
        backend, image = local
        async with backend.open_terminal(image) as one, backend.open_terminal(image) as two:
            return [await count(one), await count(two)]

    for children in asyncio.run(count_in_two()):
        assert MAX_PROCESSES - 10 < children < MAX_PROCESSES
