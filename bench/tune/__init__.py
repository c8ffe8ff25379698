"""Hyperparameter search: space, study, trials and results."""
