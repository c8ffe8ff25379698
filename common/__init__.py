"""Shared helpers: errors, atomic writes, redaction, registries."""
