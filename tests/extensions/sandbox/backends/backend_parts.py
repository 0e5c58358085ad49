"""Names and settings of the sandbox backends in tests."""

import pytest

from fieldcraft.extensions.sandbox.limits import SandboxLimits

LIMITS = SandboxLimits(wall_seconds=300, memory_mb=256, processes=8, disk_mb=8, file_mb=4)
SETTINGS = {
    "local": lambda request: {"libraries": ()},
    "sandboxfusion": lambda request: {"url": request.getfixturevalue("server")},
    "container": lambda request: {
        "image": request.getfixturevalue("image"),
        "engine": request.getfixturevalue("engine"),
    },
    "e2b": lambda request: {"template": request.getfixturevalue("e2b") and "python"},
}
SLOW = {"container"}  # seconds for each program
NAMES = [pytest.param(n, marks=pytest.mark.long if n in SLOW else ()) for n in SETTINGS]
WITH_SESSIONS = [name for name in NAMES if name.values[0] != "sandboxfusion"]
# The server for tests of E2B isolates nothing, and E2B itself runs virtual machines.
THAT_ISOLATE = [name for name in NAMES if name.values[0] != "e2b"]
