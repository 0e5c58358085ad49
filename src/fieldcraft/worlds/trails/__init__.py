"""Trails: places with a neighbour in every direction, and walks longer than a context window."""

from fieldcraft.worlds.trails.world import TrailsWorld

__all__ = ["TrailsWorld"]
