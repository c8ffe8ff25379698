"""What the command line calls a setting: messages name what a user typed."""


def flag(name: str) -> str:
    """Return the option of a field, such as --global-batch-size of global_batch_size."""
    return f"--{name.replace('_', '-')}"
