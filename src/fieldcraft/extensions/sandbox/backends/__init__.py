"""Places where untrusted programs run, by name: see `base.SandboxBackend`."""
