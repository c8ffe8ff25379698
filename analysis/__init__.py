"""The reader: run directories and profiler output in, tables and pictures out. Imports no torch."""
