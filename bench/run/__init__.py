"""Trials and trainings as they run: processes, the step clock, sensors, records."""
