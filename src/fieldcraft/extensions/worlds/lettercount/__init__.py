"""Lettercount: how often a letter occurs in a word, counted aloud and without a tool."""

from fieldcraft.extensions.worlds.lettercount.world import LettercountWorld

__all__ = ["LettercountWorld"]
