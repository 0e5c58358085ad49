"""Tool-call formats of model families, as their chat templates write them."""
