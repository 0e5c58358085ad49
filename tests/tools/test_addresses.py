"""Addresses of servers that cannot be used, and when a command finds it out."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.tools.addresses import require_free_address
from fieldcraft.types import UserError


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("host", "port", "sentence"),
    [
        ("127.0.0.1", -1, "There is no port -1; choose one from 0 to 65535."),
        ("127.0.0.1", 65536, "There is no port 65536; choose one"),
        ("203.0.113.7", 0, "give an address of this machine as the host, such as 127.0.0.1"),
        ("::1", 0, "give an address of this machine as the host, such as 127.0.0.1"),
        ("nowhere.invalid", 0, "give an address of this machine as the host, such as 127.0.0.1"),
    ],
)
def test_an_address_that_no_server_can_have(host: str, port: int, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        require_free_address(host, port)
    assert sentence in str(refused.value)


def test_a_free_address_stays_free(used_port: int) -> None:
    with pytest.raises(UserError, match="stop what uses it or choose another port"):
        require_free_address("127.0.0.1", used_port)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    require_free_address("127.0.0.1", port)
    socket.create_server(("127.0.0.1", port)).close()


def test_a_used_port_is_found_before_torch_is_imported(tmp_path: Path, used_port: int) -> None:
    write_tiny_checkpoint(tmp_path, "qwen2", tokenizer=tiny_tokenizer())
    program = (
        "import sys; from fieldcraft.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('torch' in sys.modules)"
    )
    arguments = ["serve", "agent", "--model", str(tmp_path), "--port", str(used_port)]
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "False\n"), ended.stderr
    assert ended.stderr.startswith(f"fieldcraft: Cannot listen on 127.0.0.1:{used_port} ")
