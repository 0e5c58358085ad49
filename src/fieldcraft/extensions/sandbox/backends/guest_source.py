"""Source code of the guests: programs that a machine runs, which has no fieldcraft."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

_PACKAGE = "fieldcraft.extensions.sandbox"
_PACKAGES = ("fieldcraft", "fieldcraft.extensions", _PACKAGE, f"{_PACKAGE}.backends")


def make_guest_command(modules: Sequence[str]) -> list[str]:
    """Return the command that runs `main` of the last module in Python. The modules are those of
    this package, by their names in it, each after those that it imports."""
    names = [f"{_PACKAGE}.{module}" for module in modules]
    lines = [
        "import sys, types",
        f"for name in {[*_PACKAGES, *names]!r}: sys.modules[name] = types.ModuleType(name)",
    ]
    for module, name in zip(modules, names, strict=True):
        source = resources.files(_PACKAGE).joinpath(f"{module.replace('.', '/')}.py")
        code = f"compile({source.read_text('utf-8')!r}, '<fieldcraft>', 'exec')"
        lines.append(f"exec({code}, sys.modules[{name!r}].__dict__)")
    lines.append(f"sys.modules[{names[-1]!r}].main()")
    return ["python3", "-c", "\n".join(lines)]
