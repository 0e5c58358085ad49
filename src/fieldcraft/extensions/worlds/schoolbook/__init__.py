"""Schoolbook: arithmetic word problems for a pretrained model with a Python tool."""

from fieldcraft.extensions.worlds.schoolbook.world import SchoolbookWorld

__all__ = ["SchoolbookWorld"]
