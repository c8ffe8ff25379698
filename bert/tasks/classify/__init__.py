"""Texts with labels in a CSV: read, cut into word pieces, folded, divided, and kept in a SQLite file."""
