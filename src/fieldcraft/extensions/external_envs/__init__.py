"""External environments, and the HTTP routes over which they reach an engine."""
