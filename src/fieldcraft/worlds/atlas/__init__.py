"""Atlas: a synthetic encyclopedia."""

from fieldcraft.worlds.atlas.world import AtlasWorld

__all__ = ["AtlasWorld"]
