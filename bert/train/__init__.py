"""A training run: its settings, its checkpoints, its evaluation, and resuming it exactly. See bert.train.run."""
