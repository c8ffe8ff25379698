"""What the command line calls a setting: messages name what a user typed."""

from common.errors import UsageError

LARGEST_SEED = 2**32 - 1
"""NumPy's legacy generator, which Hugging Face seeds too, takes no larger one."""


def flag(name: str) -> str:
    """Return the option of a field, such as --global-batch-size of global_batch_size."""
    return f"--{name.replace('_', '-')}"


def check_seed(seed: object) -> None:
    """Raise UsageError unless every generator of a training takes this seed."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED:
        raise UsageError("option-value", f"--seed {seed!r} must be a whole number from 0 to {LARGEST_SEED}")
