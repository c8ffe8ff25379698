"""Readers of what profilers write, one module per format."""
