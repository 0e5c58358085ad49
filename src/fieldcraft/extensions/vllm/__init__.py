"""Engine that samples from vLLM servers over HTTP."""
