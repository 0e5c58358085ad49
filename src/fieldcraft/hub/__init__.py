"""Models and data by the names that people use, brought to this machine.

Names of Hugging Face's hub, and files of other programs, become folders and files that all else
reads.
"""
