"""What Nsight Systems writes: SQLite exports, and the CSV of `nsys stats`."""
