"""What every package may use: errors, atomic writes, redaction, registries. Standard library only."""
