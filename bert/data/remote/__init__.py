"""Data over the network: what can be had by name, listed, fetched, checked."""
