"""What `bertbench data pretrain` does: its options, its stages in order, what it ends with."""
