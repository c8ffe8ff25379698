"""Traces of ROCm's rocprofv3."""
