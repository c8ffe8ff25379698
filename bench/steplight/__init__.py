"""The speed of light of a step: its parts timed alone. What follows from the times is analysis.metrics.speed_of_light.

bert.model.step says what a step is made of, `parts` makes all of it, ready to be called alone, and `measure` times the
parts in interleaved rounds between whole steps.
"""
