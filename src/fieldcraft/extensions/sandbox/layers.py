"""Layers of isolation: the protection of each layer, and which of them a system may lack."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
# Layers that only repeat what other layers contain, with these layers. Kernels before 6.12 lack
# some of them.
CONTAINED_BY: Mapping[str, tuple[str, ...]] = {
    landlock.FILES: ("mount", SECCOMP),
    landlock.NETWORK: (NETWORK,),
    landlock.SCOPES: ("pid", NETWORK),
}
_MIN_KERNEL = "5.14"
_ELSEWHERE = "run programs elsewhere, with the setting 'backend' or 'url' of the tool python"


@dataclass(frozen=True)
class MissingLayers:
    """Layers that a system does not support, each with the reason.

    Attributes:
        required: no other layer contains what these contain, so the sandbox does not start.
        contained: the layers of `CONTAINED_BY` contain the same, so these are left out.
    """

    required: Mapping[str, str]
    contained: Mapping[str, str]


def sort_missing_layers(missing: Mapping[str, str], waive: Collection[str]) -> MissingLayers:
    """Sort the missing layers by their consequence.

    Args:
        missing: layer -> reason why the system does not support it.
        waive: layers that are switched off: they contain nothing.
    """
    off = {*missing, *waive}
    contained = {
        name: reason
        for name, reason in missing.items()
        if name in CONTAINED_BY and off.isdisjoint(CONTAINED_BY[name])
    }
    required = {name: reason for name, reason in missing.items() if name not in contained}
    return MissingLayers(required, contained)


def describe_layers(active: Collection[str], contained: Mapping[str, str]) -> str:
    """Return the active layers, and those that the system lacks, as part of a sentence."""
    text = ", ".join(active)
    if contained:
        others = dict.fromkeys(layer for name in contained for layer in CONTAINED_BY[name])
        text += (
            f"; {', '.join(others)} already contain what this system's"
            f" {', '.join(contained)} would ({'; '.join(dict.fromkeys(contained.values()))})"
        )
    return text


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
                f" on it; allow user namespaces on this machine, or {_ELSEWHERE}."
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
            f"the sandbox lacks the {plural} {reasons}, and '{core[0]}' cannot be waived:"
            f" {advise_on_core_layers(' '.join(missing.values()))}, or {_ELSEWHERE}."
        )
    raise UserError(
        f"the sandbox lacks the {plural} {reasons}; use a system that supports it, or waive it"
        f" with the setting allow_missing_layers: [{', '.join(missing)}]."
    )


def advise_on_core_layers(reasons: str) -> str:
    """Return what makes the layers available that all others depend on."""
    if os.strerror(errno.ENOSYS) in reasons:
        return f"use Linux {_MIN_KERNEL} or newer"
    return (
        "allow user namespaces (Docker: --security-opt seccomp=unconfined --security-opt"
        " apparmor=unconfined; Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
    )
