"""Pretraining instances: shards of sentences in, HDF5 shards and batches out."""
