"""Layers of isolation: the protection of each layer, and errors for missing layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fieldcraft.extensions.sandbox import landlock
from fieldcraft.types import UserError

SECCOMP = "seccomp"
NETWORK, IPC, HOSTNAME = "network", "ipc", "hostname"
LAYERS: Mapping[str, str] = {
    "user": "a user without privileges on the host, and a separate limit on processes",
    "mount": "a separate file system: Python read-only, and a private folder in memory",
    "pid": "no access to other processes; all processes of a run are killed together",
    NETWORK: "no network interface or abstract socket of the host",
    IPC: "no shared memory or message queue of the host",
    HOSTNAME: "no access to the name of the host",
    landlock.FILES: "files, in addition: read Python, write the private folder, execute nothing",
    landlock.NETWORK: "TCP, in addition: no port can be used",
    landlock.SCOPES: "no abstract sockets or signals to processes outside",
    SECCOMP: "only the system calls that ordinary programs need",
}
CORE_LAYERS = ("user", "mount", "pid")  # the other layers depend on them


def require_waivable(waive: Collection[str]) -> None:
    """Raise UserError for an unknown layer, or a layer that cannot be waived."""
    for name in waive:
        if name not in LAYERS:
            raise UserError(
                f"the sandbox has no layer '{name}' to waive; its layers are {', '.join(LAYERS)}."
            )
        if name in CORE_LAYERS:
            raise UserError(
                f"the layer '{name}' of the sandbox cannot be waived, because other layers depend"
                " on it; allow user namespaces on this machine, or use a sandbox server on another."
            )


def require_no_missing_layers(missing: Mapping[str, str]) -> None:
    """Raise UserError if a layer that is not waived is unavailable.

    Args:
        missing: layer -> reason why the system does not support it.
    """
    if not missing:
        return
    reasons = ", ".join(f"'{name}' ({reason})" for name, reason in missing.items())
    plural = "layers" if len(missing) > 1 else "layer"
    if core := [name for name in missing if name in CORE_LAYERS]:
        raise UserError(
            f"the sandbox lacks the {plural} {reasons}; allow user namespaces on this machine"
            f" ('{core[0]}' cannot be waived), or use a sandbox server on another."
        )
    raise UserError(
        f"the sandbox lacks the {plural} {reasons}; use a system that supports it, or waive it"
        f" with the setting allow_missing_layers: [{', '.join(missing)}]."
    )
