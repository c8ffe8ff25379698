"""Read, convert and write weights: TensorFlow checkpoints, Hugging Face folders and bertbench folders."""
