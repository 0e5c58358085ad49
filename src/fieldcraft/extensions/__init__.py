"""Extensions of the kernel, which enter a run by name: see config/components.py."""
