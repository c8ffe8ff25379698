"""Job files of batch systems."""
