"""Searches: the training options with the best score, and the configuration with the highest throughput."""
