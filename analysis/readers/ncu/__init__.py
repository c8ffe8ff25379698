"""What Nsight Compute writes."""
