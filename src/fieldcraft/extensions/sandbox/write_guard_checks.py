"""Checks of what keeps programs from changing files outside of their folders on this system."""

from __future__ import annotations

import subprocess

from fieldcraft.extensions.sandbox import landlock
from fieldcraft.extensions.sandbox.layers import advise_on_core_layers
from fieldcraft.extensions.sandbox.write_guard import make_guarded_command
from fieldcraft.tools.base import Isolation


def explain_missing_guard() -> str | None:
    """Return the reason why this system cannot restrict programs, with the remedy; or None."""
    reason = landlock.explain_missing(landlock.FILES)
    if reason is None:
        return None
    command = make_guarded_command(["/bin/sh", "-c", ":"], [])
    tried = subprocess.run(command, capture_output=True, check=False)
    if tried.returncode == 0:
        return None
    missing = tried.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"{reason}, and it has no mount namespace ({missing}): {advise_on_core_layers(missing)}"


def describe_guard() -> Isolation:
    """Return what restricts programs on this system, if something does."""
    if landlock.explain_missing(landlock.FILES) is None:
        features = (landlock.FILES, landlock.SCOPES)
        layers = tuple(name for name in features if landlock.explain_missing(name) is None)
    else:
        layers = ("user", "mount")
    return Isolation(
        "local", layers, f"on this machine, and change their own folders only ({', '.join(layers)})"
    )
