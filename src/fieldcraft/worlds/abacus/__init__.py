"""Abacus: mental arithmetic, Python for larger numbers, and notes with instructions."""

from fieldcraft.worlds.abacus.world import AbacusWorld

__all__ = ["AbacusWorld"]
