"""The layers of isolation: what each one keeps out, and the refusal to run without one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fieldcraft.sandbox import landlock
from fieldcraft.types import UserError

SECCOMP = "seccomp"
NETWORK, IPC, HOSTNAME = "network", "ipc", "hostname"
LAYERS: Mapping[str, str] = {
    "user": "a user without rights on the host, and a count of processes of its own",
    "mount": "a file system of its own: Python read-only, and a private folder in memory",
    "pid": "no sight of other processes; all of a run die together",
    NETWORK: "no network interface and no abstract socket of the host",
    IPC: "no shared memory and no message queue of the host",
    HOSTNAME: "no name of the host",
    landlock.FILES: "files again: reading Python, writing the private folder, executing nothing",
    landlock.NETWORK: "TCP again: no port can be used",
    landlock.SCOPES: "no abstract socket and no signal to a process outside",
    SECCOMP: "only the system calls that ordinary programs need",
}
CORE_LAYERS = ("user", "mount", "pid")  # without them there is nothing that the others could guard


def require_waivable(waive: Collection[str]) -> None:
    """Raise UserError for a name that is no layer, or that of one that cannot be waived."""
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
    """Raise UserError where a layer that is not waived cannot be had.

    Args:
        missing: layer -> why the system refuses it.
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
