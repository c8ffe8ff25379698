"""Optimizations of a training step: a registry and one module each."""
