"""Comparing: the ratio of two sides; runs, their history, traces, trainings."""
