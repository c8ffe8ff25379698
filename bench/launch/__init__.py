"""Run one program with torchrun on one or several nodes: preflight, start, watch."""
