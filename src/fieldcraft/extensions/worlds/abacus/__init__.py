"""Abacus: mental arithmetic, Python for larger numbers, and notes with instructions."""

from fieldcraft.extensions.worlds.abacus.world import AbacusWorld

__all__ = ["AbacusWorld"]
