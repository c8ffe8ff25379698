"""What nvprof writes: CSV summaries and traces, and .nvvp files."""
