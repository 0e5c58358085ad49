"""Calculator: nested arithmetic in words, for a calculator tool with nested calls."""

from fieldcraft.extensions.worlds.calculator.world import CalculatorWorld

__all__ = ["CalculatorWorld"]
