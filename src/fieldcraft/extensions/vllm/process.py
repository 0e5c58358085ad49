"""vLLM server as a child process with a separate Python, which exits with the run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fieldcraft.config.interpreters import get_installed_version
from fieldcraft.extensions.vllm.client import SUPPORTED_VERSIONS, describe_supported_versions
from fieldcraft.records.files import open_log
from fieldcraft.tools.serving import find_free_port
from fieldcraft.types import UserError

WORKER_FOLDER = Path(__file__).parent / "worker"  # on the import path of vLLM's Python
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
