"""Metrics as docs/explanation/measurement.md defines them; every function takes data, none reads a file."""
