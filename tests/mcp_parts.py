"""MCP servers written with the SDK, to be started as processes."""

import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SERVER = '''
import os, sys
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("notes")
notes = []
with open(FOLDER + "/started", "a") as file:
    print(os.getpid(), file=file)


@server.tool()
def note(text: str) -> str:
    """Write a note.

    All notes come back.
    """
    notes.append(text)
    return " ".join(notes)


@server.tool()
def count() -> int:
    """How many notes there are."""
    return len(notes)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no luck")


@server.tool()
def end() -> str:
    """End the server."""
    print("the lights go out", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def picture() -> list:
    """Text and what is not."""
    return ["two dots", Image(data=b"..", format="png")]


@server.tool()
def secret() -> str:
    """What the environment says."""
    return str(os.environ.get("NOTES_KEY"))


server.run()
'''
LISTER = """
import json, sys

HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "lister", "version": "1"},
}
for line in sys.stdin:
    asked = json.loads(line)
    answers = {"initialize": HELLO, "tools/list": {"tools": TOOLS}, "tools/call": CALLED}
    found = answers.get(asked["method"])
    answer = {"result": found} if found else {"error": {"code": -32601, "message": "no"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""
DIES = "import sys; sys.exit('no licence')"


def write_server(folder: Path, source: str = SERVER) -> str:
    """Write a server and return the command that starts it. It appends its process id to
    `folder/started`."""
    file = folder / "server.py"
    file.write_text(f"FOLDER = {str(folder)!r}\n{source}")
    return shlex.join([sys.executable, str(file)])


def write_lister(
    folder: Path, tools: list[dict[str, Any]], called: dict[str, Any] | None = None
) -> str:
    """Write a server that the SDK would not write: it lists the given tools unchecked, and answers
    every call with `called`, or an error."""
    return write_server(folder, f"TOOLS = {tools!r}\nCALLED = {called!r}\n{LISTER}")


def started(folder: Path) -> list[int]:
    """Return the server processes started so far."""
    file = folder / "started"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def lives(process: int) -> bool:
    """Return whether a process is running; one that exited and was not waited for is not."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # also if it ends while it is read
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def start_http(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the server at http://127.0.0.1:PORT/mcp; return when it answers."""
    run = f"server.run('streamable-http', host='127.0.0.1', port={port})"
    command = shlex.split(write_server(folder, SERVER.replace("server.run()", run)))
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.05)
    raise AssertionError("the server ended")


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
