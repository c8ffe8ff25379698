"""How pretraining instances are cut and masked."""

from dataclasses import dataclass

from common.errors import UsageError
from common.flags import flag

SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""
SMALLEST_SEQ_LEN = SPECIAL_TOKENS + 2
"""[CLS] a [SEP] b [SEP]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceConfig:
    """How instances are cut and masked."""

    seq_len: int
    """Tokens per instance, [CLS], two [SEP] and padding included."""
    max_predictions: int
    """Masked positions per instance at most."""
    masked_lm_prob: float = 0.15
    """Share of the tokens that is masked."""
    short_seq_prob: float = 0.1
    """Share of documents (in each duplicate) whose instances aim at a length drawn from 2 .. seq_len - 3."""
    dupe_factor: int = 5
    """Times the corpus is gone through, each time with other cuts and masks."""
    whole_word_mask: bool = False
    """Mask all pieces of a word or none."""
    seed: int = 12345
    """Seed of every draw."""

    def __post_init__(self) -> None:
        """Refuse values no instance can be made with."""
        if self.seq_len < SMALLEST_SEQ_LEN:
            raise UsageError(
                "option-value", f"--seq-len {self.seq_len} is too short: [CLS] a [SEP] b [SEP] needs {SMALLEST_SEQ_LEN}"
            )
        if self.max_predictions < 1:
            raise UsageError("option-value", f"--max-predictions {self.max_predictions} must be at least 1")
        if self.dupe_factor < 1:
            raise UsageError("option-value", f"--dupe-factor {self.dupe_factor} must be at least 1")
        if self.seed < 0:
            raise UsageError("option-value", f"--seed {self.seed} must not be negative")
        for name in ("masked_lm_prob", "short_seq_prob"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError("option-value", f"{flag(name)} {getattr(self, name)} must be in [0, 1]")
