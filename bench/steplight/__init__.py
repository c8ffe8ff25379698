"""The speed of light of a step: its parts timed alone. What follows from the times is analysis.metrics.speed_of_light.

`products` says which matrix products a step is made of, `parts` makes everything a step is made of, ready to be called
alone, and `measure` times them in interleaved rounds between whole steps.
"""
