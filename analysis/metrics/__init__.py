"""Metrics as docs/explanation/measurement.md defines them. None reads a trace; those over runs read their records."""
