"""Worlds: synthetic corpora whose questions, facts and best answers are known."""
