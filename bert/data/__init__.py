"""Inputs: corpora, instances, HDF5 shards, synthetic batches."""
