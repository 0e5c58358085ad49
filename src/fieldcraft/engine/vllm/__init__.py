"""An engine that samples from servers of vLLM, by HTTP."""
