"""What a folder of shards holds: counts, samples, every rule of the format; two folders compared."""
