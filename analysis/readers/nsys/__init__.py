"""What Nsight Systems writes: SQLite exports, and the tables of `nsys stats`."""
