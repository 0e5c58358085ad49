"""Domains: Abacus and Atlas side by side, each question with the tool of its own domain alone."""

from fieldcraft.worlds.domains.world import DomainsWorld

__all__ = ["DomainsWorld"]
