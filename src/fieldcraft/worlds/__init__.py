"""Worlds: synthetic surroundings whose questions, truth and best way to answer are known."""
