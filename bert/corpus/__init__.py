"""Text for pretraining: dumps and books in, balanced shards of sentences out."""
