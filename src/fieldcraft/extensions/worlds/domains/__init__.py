"""Domains: Abacus and Atlas in one world, each question with only the tool of its domain."""

from fieldcraft.extensions.worlds.domains.world import DomainsWorld

__all__ = ["DomainsWorld"]
