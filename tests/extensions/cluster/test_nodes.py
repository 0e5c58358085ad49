"""Several Ray nodes on this machine, one of which is misconfigured."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cli_parts import TINY
from fieldcraft.tools.addresses import find_free_port

pytestmark = pytest.mark.slow
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
SECONDS = 300


class RayNodes:
    """Nodes that authenticate each other by a token."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder
        self.variables = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        self.address = f"127.0.0.1:{find_free_port('127.0.0.1')}"

    def head(self) -> None:
        port = self.address.partition(":")[2]
        self.node("--head", f"--port={port}", "--include-dashboard=false", "--num-cpus=1")

    def worker(self, *around: str, **variables: str) -> None:
        """Start a node with three cores inside the command `around`."""
        options = (f"--address={self.address}", "--num-cpus=3")
        self.node(*options, around=around, **variables)

    def node(self, *options: str, around: tuple[str, ...] = (), **variables: str) -> None:
        """Start a node that ends with the test."""
        command = [*around, *RAY, "start", "--block", "--node-ip-address=127.0.0.1", *options]
        log = (self.folder / "nodes.log").open("ab")
        environment = {**self.variables, **variables}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)
        self.stack.callback(log.close)

    def until_there(self, nodes: int) -> None:
        """Wait for a number of nodes."""
        look = [*RAY, "status", f"--address={self.address}"]
        for _ in range(60):
            found = subprocess.run(look, env=self.variables, capture_output=True, text=True)
            if found.stdout.count(" node_") >= nodes:
                return
        raise AssertionError((self.folder / "nodes.log").read_text()[-3000:])

    def run(self, out: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
        recipe = ["smoke", *TINY, f"cluster.ray_address={self.address}", *overrides]
        command = [sys.executable, "-m", "fieldcraft", "run", *recipe, "--out", str(out)]
        return subprocess.run(
            command, env=self.variables, capture_output=True, text=True, timeout=SECONDS
        )


@pytest.fixture
def ray_nodes(tmp_path: Path) -> Iterator[RayNodes]:
    pytest.importorskip("ray")
    with ExitStack() as stack:
        yield RayNodes(stack, tmp_path)


@contextmanager
def without(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a command in which an empty file system hides the folder."""
    hide = f'mount -t tmpfs none {folder} && exec "$0" "$@"'
    around = ("unshare", "--mount", "--map-root-user", "bash", "-c", hide)
    if not shutil.which("unshare") or subprocess.run([*around, "true"]).returncode:
        pytest.skip("this machine gives nobody a view of files of their own")
    yield around


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stdout + done.stderr
    loading, message = done.stderr.strip().splitlines()
    assert loading == "Loading torch and transformers ..."
    return message


def test_a_node_with_another_version(ray_nodes: RayNodes, tmp_path: Path) -> None:
    other = tmp_path / "other" / "transformers-4.0.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.0.0\n")
    paths = f"{other.parent}:{os.environ.get('PYTHONPATH', '')}"
    ray_nodes.head()
    ray_nodes.worker(PYTHONPATH=paths)
    ray_nodes.until_there(2)
    message = sentence(ray_nodes.run(tmp_path / "run", "cluster.trainers=2", "cluster.engines=2"))
    assert "has transformers 4.0.0 and this machine has" in message
    assert not list((tmp_path / "run").glob("base*"))


def test_a_folder_that_is_not_shared(ray_nodes: RayNodes, tmp_path: Path) -> None:
    shared = tmp_path / "runs"
    shared.mkdir()
    ray_nodes.head()
    with without(shared) as around:
        ray_nodes.worker(*around)
        ray_nodes.until_there(2)
        message = sentence(ray_nodes.run(shared / "run", "cluster.trainers=2", "cluster.engines=2"))
    assert f"cannot access the run folder {shared / 'run'}" in message
    assert not list((shared / "run").glob("base*"))


def test_fewer_devices_than_asked_for(ray_nodes: RayNodes, tmp_path: Path) -> None:
    ray_nodes.head()
    ray_nodes.until_there(1)
    message = sentence(ray_nodes.run(tmp_path / "run", "cluster.trainers=2", "cluster.engines=2"))
    assert "requires 4 devices (2 trainers and 2 engines), but the cluster has 1:" in message


def test_a_cluster_that_is_not_there(ray_nodes: RayNodes, tmp_path: Path) -> None:
    message = sentence(ray_nodes.run(tmp_path / "run", "cluster.engines=2"))
    assert f"no Ray cluster responds at {ray_nodes.address}" in message
