"""Environments of others, and the routes over which they reach an engine."""
