"""Batches of a folder of shards: the order of samples, reading ahead, positions that can be saved."""
