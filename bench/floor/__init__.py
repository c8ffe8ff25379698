"""The speed of light of a step: each part timed alone. analysis.metrics.speed_of_light evaluates the times.

bert.model.step describes the parts of a step, `parts` builds each as a separate call, and `measure` times them in
interleaved rounds between whole steps.
"""
