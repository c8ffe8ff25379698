"""Ways to compute a training step faster: the registry of them, one module each."""
