"""vLLM servers as processes with a separate Python, which exit with the run."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from fieldcraft.config.interpreters import get_installed_version
from fieldcraft.engine.weights import WeightSnapshot
from fieldcraft.extensions.vllm.client import SUPPORTED_VERSIONS, describe_supported_versions
from fieldcraft.records.files import make_folder, open_log
from fieldcraft.tools.addresses import find_free_port
from fieldcraft.types import UserError

WORKER_FOLDER = Path(__file__).parent / "worker"  # on the import path of vLLM's Python
SERVED_MODEL_NAME = "policy"  # model name of a server that is started here
BYTES_PER_GIB = 2**30
STOP_TIMEOUT_SECONDS = 10  # seconds for a server to exit before it is killed
# Patterns of vLLM's log, and the advice for each.
_EXIT_CAUSES = (
    (
        r"Model architectures? .*not supported",
        "does not support this architecture: use engine=local",
    ),
    (
        r"out of memory|OutOfMemory|cannot allocate memory|No available memory for the cache"
        r"|larger than the available KV cache|less than requested memory|less than desired",
        "ran out of memory: lower engine.kv_cache_gb, engine.max_model_len or max_num_seqs, or"
        " raise engine.kv_cache_gb if its log reports that a session does not fit",
    ),
)


@dataclass(frozen=True, kw_only=True)
class VllmServerSettings:
    """Settings of servers. At most `max_num_seqs` sessions are sampled at once; for the rest, see
    the arguments of `VllmEngine`, which a recipe sets."""

    max_num_seqs: int
    threads: int | None  # CPU threads; None: the model is on another device
    kv_cache_gb: float
    max_model_len: int
    dtype: str
    probe_tolerance: float
    timeout_seconds: float


def make_server_command(
    settings: VllmServerSettings, snapshot: WeightSnapshot
) -> tuple[list[str], dict[str, str]]:
    """Return the options and environment variables of a server that starts with these weights."""
    options = {
        "--model": str(snapshot.folder),
        "--served-model-name": SERVED_MODEL_NAME,
        "--dtype": settings.dtype,
        "--logprobs-mode": "processed_logprobs",  # with temperature and truncation
        "--generation-config": "vllm",  # ignore the model's recommended temperature
        "--max-num-seqs": str(settings.max_num_seqs),
        "--max-model-len": str(settings.max_model_len),
        "--kv-cache-memory-bytes": str(int(settings.kv_cache_gb * BYTES_PER_GIB)),
        "--worker-extension-cls": "fieldcraft_worker.Worker",
    }
    flags = ["--enable-scale-out", "--disable-uvicorn-access-log"]
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if settings.threads is not None:
        options["--max-num-batched-tokens"] = str(max(settings.max_model_len, 8192))
        options["--block-size"] = "32"  # granularity in tokens of shared prefixes; 128 by default
        flags += ["--enforce-eager", "--no-enable-chunked-prefill"]  # see Worker's `seeds`
        variables |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.threads),
        }
    return [part for pair in options.items() for part in pair] + flags, variables


def require_vllm(python: Path) -> None:
    """Raise UserError unless a Python environment has a supported vLLM."""
    version = get_installed_version(python, "vllm", "engine.python")
    if not version:
        raise UserError(f"vLLM is not installed in {python}: run {python} -m pip install vllm.")
    if not version.startswith(SUPPORTED_VERSIONS):
        raise UserError(
            f"{python} has vLLM {version}, and only {describe_supported_versions()} are supported: "
            "install one of these."
        )


class VllmProcess:
    """Server on a free port of this machine. Its process group exits with this process.

    Args:
        python: interpreter of the environment that has vLLM.
        options: command-line options of vLLM's server, without the address.
        variables: environment variables in addition to those of this process.
        scratch: folder that is deleted if this process exits first.
        log: file that the server's output is appended to.
        host: address of this machine at which the server listens.
    """

    def __init__(
        self,
        python: Path,
        options: Sequence[str],
        variables: Mapping[str, str],
        scratch: Path,
        log: Path,
        host: str = "127.0.0.1",
    ) -> None:
        self.log = log
        self._log_offset = log.stat().st_size if log.exists() else 0
        port = find_free_port(host)
        self.url = f"http://{host}:{port}"
        server = [str(python), str(WORKER_FOLDER / "fieldcraft_server.py"), str(scratch)]
        address = ["--host", host, "--port", str(port)]
        environment = {**os.environ, **variables, "PYTHONPATH": str(WORKER_FOLDER)}
        with open_log(log) as output:
            self._process = subprocess.Popen(
                [*server, *address, *options],
                stdin=subprocess.PIPE,  # closes when this process exits for any reason
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Stop the server and all processes that it has started."""
        self._process.terminate()  # only the server, which stops its children and cleans up
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_SECONDS)
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        while self._signal_group(0) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._signal_group(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _signal_group(self, number: int) -> bool:
        """Send a signal to the process group. Returns whether a process of the group still
        exists."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def describe_exit(self) -> str:
        """Return the reason for the server's exit according to its log, with advice."""
        with self.log.open("rb") as file:
            file.seek(self._log_offset)
            text = file.read().decode(errors="replace")
        for pattern, advice in _EXIT_CAUSES:
            if re.search(pattern, text, re.IGNORECASE):
                return f"vLLM {advice}; its log is {self.log}"
        errors = re.findall(r"\b(\w*(?:Error|Exception): .*)", text)
        last = f" ({' '.join(errors[-1].split())[:200].rstrip('.')})" if errors else ""
        return f"the vLLM server exited{last}; see its log {self.log}"


class NodeLostError(Exception):
    """The machine on which a launcher starts a server has failed."""


class ServerLauncher(Protocol):
    """Launcher of servers, each with an index. Methods with an index raise NodeLostError if the
    machine of this server fails."""

    @property
    def num_servers(self) -> int:
        """Number of servers."""

    @property
    def exchange_folder(self) -> Path:
        """Folder for the exchange of weights with all servers."""

    async def require_usable(self, index: int) -> None:
        """Raise UserError if the machine of a server lacks vLLM."""

    async def start(
        self, index: int, options: Sequence[str], variables: Mapping[str, str]
    ) -> tuple[str, Path]:
        """Start a server, instead of an earlier one with the same index, and return its URL and its
        log."""

    async def is_running(self, index: int) -> bool:
        """Return whether the process of a server is running."""

    async def describe_exit(self, index: int) -> str:
        """Return the reason why a server has exited."""

    async def close(self) -> None:
        """Stop all servers."""


class LocalLauncher:
    """`ServerLauncher` of one server on this machine. Weights are exchanged in a new folder in
    `parent`."""

    num_servers = 1

    def __init__(self, python: Path, parent: Path, log: Path) -> None:
        self._python = python
        self._parent = parent
        self._log = log
        self._process: VllmProcess | None = None

    @cached_property
    def exchange_folder(self) -> Path:
        make_folder(self._parent)
        return Path(tempfile.mkdtemp(prefix="fieldcraft-", dir=self._parent))

    async def require_usable(self, index: int) -> None:
        require_vllm(self._python)

    async def start(
        self, index: int, options: Sequence[str], variables: Mapping[str, str]
    ) -> tuple[str, Path]:
        await self._stop()
        self._process = VllmProcess(
            self._python, options, variables, self.exchange_folder, self._log
        )
        return self._process.url, self._log

    async def is_running(self, index: int) -> bool:
        return self._process is not None and self._process.is_running

    async def describe_exit(self, index: int) -> str:
        assert self._process is not None
        return self._process.describe_exit()

    async def close(self) -> None:
        await self._stop()
        if "exchange_folder" in self.__dict__:  # it was used
            shutil.rmtree(self.exchange_folder, ignore_errors=True)

    async def _stop(self) -> None:
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
