"""Abacus: small sums for the head, large ones for Python, and notes that say what to do."""

from fieldcraft.worlds.abacus.world import AbacusWorld

__all__ = ["AbacusWorld"]
