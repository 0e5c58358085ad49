"""Atlas: a synthetic encyclopedia."""

from fieldcraft.extensions.worlds.atlas.world import AtlasWorld

__all__ = ["AtlasWorld"]
