"""Worlds: synthetic corpora with known questions, facts and optimal answers."""
