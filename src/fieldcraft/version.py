"""The version of fieldcraft."""

__version__ = "0.1.0"
