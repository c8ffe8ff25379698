"""One process, one device."""

import os

from bert.parallel.base import Strategy
from common.errors import UsageError


class SingleStrategy(Strategy):
    """Trains in this process alone."""

    def setup(self, device_type: str) -> None:
        """Pick the device. Raises UsageError when several ranks were started or the device is absent."""
        super().setup(device_type)
        if self.world_size != 1:
            raise UsageError(
                "unsupported-combination",
                f"strategy single runs on one device, but {self.world_size} were requested: use strategy ddp",
            )

    @classmethod
    def alone(cls, device_type: str) -> "SingleStrategy":
        """Return one that computes by itself on this process's device, whatever world the process is a rank of.

        Raises:
            UsageError: the device is absent.
        """
        strategy = cls()
        strategy.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if device_type == "cuda":
            strategy._pick_gpu()
        return strategy
