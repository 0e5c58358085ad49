"""Trails: places with a neighbour in each direction, and walks that exceed a context window."""

from fieldcraft.extensions.worlds.trails.world import TrailsWorld

__all__ = ["TrailsWorld"]
