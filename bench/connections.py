"""Measure a served agent with misbehaving clients, silent or slow ones, and with a full disk.

    python bench/connections.py runs/autocoa-mini [--silent 10000] [--slow 1000]

It starts `fieldcraft serve agent` and asks one question after the other: without other clients,
with connections that send nothing, with clients that send one byte of their headers per second, and
with files that cannot grow. Linux only: it reads /proc and sets a resource limit of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import typer

ASKED = 20  # questions per scene
QUESTION = "Who is the employer of Bral Kur?"


class Server:
    """A served agent in a separate process, and its resource usage."""

    def __init__(self, model: Path, record: Path) -> None:
        command = [sys.executable, "-m", "fieldcraft", "serve", "agent", "--model", str(model)]
        command += ["--port", "0", "--log-folder", str(record)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = next(line.split()[-1] for line in self.process.stdout if "server at" in line)
        self.model = httpx.get(f"{self.url}/v1/models", timeout=300).json()["data"][0]["id"]

    def memory(self) -> int:
        """Return the resident memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) // 1024

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def ask(self, client: httpx.AsyncClient) -> str:
        """Ask the question, and return the id of the answer."""
        body = {"model": self.model, "messages": [{"role": "user", "content": QUESTION}]}
        answer = await client.post(f"{self.url}/v1/chat/completions", json=body, timeout=300)
        answer.raise_for_status()
        return str(answer.json()["id"])


async def silent(host: str, port: int) -> asyncio.StreamWriter:
    """Open a connection that sends nothing."""
    _, writer = await asyncio.open_connection(host, port)
    return writer


async def slow(host: str, port: int) -> None:
    """Send one byte of the headers per second, and reconnect when the connection is closed."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET / HTTP/1.1\r\nSlow: ")
            while not reader.at_eof():
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(1)


async def scene(name: str, server: Server) -> None:
    """Ask the questions, and print a row of the table."""
    times = []
    async with httpx.AsyncClient() as client:
        for _ in range(ASKED):
            began = time.perf_counter()
            await server.ask(client)
            times.append(1000 * (time.perf_counter() - began))
    print(
        f"| {name} | {server.descriptors()} | {server.memory()} | {statistics.median(times):.0f} |"
        f" {max(times):.0f} |",
        flush=True,
    )


async def full_disk(server: Server, record: Path) -> None:
    """Prevent files of the server from growing, send requests, and check the files."""
    files = sorted(record.iterdir())
    async with httpx.AsyncClient() as client:
        known = await server.ask(client)
        sizes = [file.stat().st_size for file in files]
        limit = (max(sizes) + 50, resource.RLIM_INFINITY)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limit)
        await server.ask(client)
        said = {"id": known, "score": 1, "comment": "a" * 2 * max(sizes)}
        refused = await client.post(f"{server.url}/v1/feedback", json=said)
        whole = sizes == [file.stat().st_size for file in files]
        free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, free)
        accepted = await client.post(f"{server.url}/v1/feedback", json={**said, "comment": "a"})
        lost = await client.get(f"{server.url}/metrics")
    unrecorded = next(x for x in lost.text.splitlines() if x.startswith("fieldcraft_agent_unrec"))
    print(f"\nfull disk: answered; feedback {refused.status_code}, {accepted.status_code} after it")
    print(f"files end with complete lines: {whole}; {unrecorded}")


async def measure(server: Server, record: Path, count: int, dripping: int) -> None:
    where = urlsplit(server.url)
    host, port = str(where.hostname), int(where.port or 0)
    async with httpx.AsyncClient() as client:
        await server.ask(client)  # waits until the engine is ready
    print("| concurrent load | descriptors | resident MiB | median ms per answer | maximum |")
    print("|---|---|---|---|---|")
    await scene("none", server)
    writers = [await silent(host, port) for _ in range(count)]
    await scene(f"{count:,} silent connections", server)
    for writer in writers:
        writer.close()
    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(slow(host, port)) for _ in range(dripping)]
        await asyncio.sleep(2)
        await scene(f"{dripping:,} slow clients", server)
        for client in clients:
            client.cancel()
    await full_disk(server, record)


def main(model: Path, silent: int = 10_000, slow: int = 1_000) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        server = Server(model, Path(folder))
        try:
            asyncio.run(measure(server, Path(folder), silent, slow))
        finally:
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    typer.run(main)
