"""Sandbox backend `e2b`: programs in virtual machines of E2B."""

from __future__ import annotations

import os
from importlib.util import find_spec

from fieldcraft.config.names import import_object
from fieldcraft.extensions.sandbox.backends.machines import MachineBackend
from fieldcraft.extensions.sandbox.limits import SandboxLimits
from fieldcraft.tools.base import Isolation
from fieldcraft.types import UserError

# Template of E2B with Python and the usual libraries
DEFAULT_TEMPLATE = "code-interpreter-v1"
_DEFAULT_CONCURRENT = 20  # what every account of E2B may have
# Its module imports the package e2b.
_HOST = "fieldcraft.extensions.sandbox.backends.e2b_machines:E2bHost"


def open_e2b_backend(
    limits: SandboxLimits,
    max_concurrent: int | None = None,
    template: str = DEFAULT_TEMPLATE,
    api_key_env: str = "E2B_API_KEY",
    internet: bool = False,
) -> MachineBackend:
    """Open the backend `e2b`.

    Args:
        limits: limits of a run. Memory and disk of all processes together are the template's.
        max_concurrent: number of concurrent sandboxes of E2B.
        template: template of E2B with Python 3.9 or newer as `python3`.
        api_key_env: environment variable with the key.
        internet: programs may use the internet.

    Raises:
        UserError: the package e2b is missing, or the environment variable is not set.
    """
    if find_spec("e2b") is None:
        raise UserError(
            "the sandbox backend 'e2b' needs the package e2b: pip install 'fieldcraft[e2b]'."
        )
    api_key = os.environ.get(api_key_env)
    if not api_key:
        raise UserError(
            f"the sandbox backend 'e2b' needs a key: set the environment variable {api_key_env}."
        )
    layers = ("virtual machine",) if internet else ("virtual machine", "no network")
    isolation = Isolation("e2b", layers, f"in sandboxes of E2B from {template}")
    host = import_object(_HOST)(template, api_key, internet)
    concurrent = _DEFAULT_CONCURRENT if max_concurrent is None else max_concurrent
    return MachineBackend(host, limits, concurrent, isolation)
