"""Kernels: families, precisions, cores, memory levels, rooflines."""
