"""Functions that run on every node before a run starts.

They are sent to the nodes as code, so that they also work if fieldcraft is missing there or has
another version. So this file imports only the standard library.
"""

import platform
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("fieldcraft", "torch", "transformers", "ray")


def collect_node_report(token_file: str) -> tuple[dict[str, str], str]:
    """Return the versions of a node, and the content of the file `token_file` there, "" if the file
    does not exist."""
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
    """Return whether a port of this node is free; 0 stands for any free port."""
    try:
        with socket.create_server((address, port)):
            return True
    except OSError:
        return False
