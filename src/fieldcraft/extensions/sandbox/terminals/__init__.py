"""Terminals: isolated machines with a shell, in our own sandbox or in containers."""
