"""Questions that a run asks every node before it begins.

The function travels to nodes as code, so that it also runs where fieldcraft is missing or another
one. So this file imports nothing but the standard library.
"""

import platform
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("fieldcraft", "torch", "transformers", "ray")


def collect_node_report(token_file: str) -> tuple[dict[str, str], str]:
    """Return the versions of a node, and what the file `token_file` holds there; "" where the file
    is not there."""
    versions = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    try:
        return versions, Path(token_file).read_text("utf-8")
    except OSError:
        return versions, ""


def is_port_free(address: str, port: int) -> bool:
    """Return whether nothing listens at a port of this node; 0 is any free one."""
    try:
        with socket.create_server((address, port)):
            return True
    except OSError:
        return False
