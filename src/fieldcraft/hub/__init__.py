"""Download of models and data sets by name, and conversion of foreign file formats.

Names on the Hugging Face hub, and files of other programs, become folders and files that the rest
of the package can read.
"""
