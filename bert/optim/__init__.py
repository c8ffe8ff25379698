"""Optimizers, learning rates, numeric precision."""
