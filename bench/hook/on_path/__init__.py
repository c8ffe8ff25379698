"""The one folder that `bertbench measure` puts on PYTHONPATH."""
