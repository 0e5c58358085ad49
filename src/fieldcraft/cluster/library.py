"""Ray, which is imported only where a recipe asks for many processes."""

from __future__ import annotations

from types import ModuleType

from fieldcraft.types import UserError


def import_ray() -> ModuleType:
    """Raises UserError where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "the section cluster needs the package ray: pip install 'fieldcraft[cluster]'."
        ) from error
    return ray
