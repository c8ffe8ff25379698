"""Comparing: ratios, winners, runs, traces, trainings, history."""
