"""fieldcraft: train language models that decide for themselves when to think, act and answer."""

from fieldcraft.version import __version__

__all__ = ["__version__"]
