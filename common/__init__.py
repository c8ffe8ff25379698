"""Shared helpers: errors, atomic writes, redaction, registries. Standard library only."""
