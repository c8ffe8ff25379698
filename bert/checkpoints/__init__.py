"""Weights in files: TensorFlow checkpoints, Hugging Face folders and our own, read, converted and written."""
