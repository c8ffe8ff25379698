"""Where a stream of batches is in the order of its samples: saved, and continued with another batch size too."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from bert.data.loading.order import SampleOrder
from common.errors import InputError, UsageError


class Position:
    """The order of a stream's global batches, and how many of them have been yielded.

    Args:
        counts: samples of each bin in each shard [shards, bins].
        seed: of the order.
        global_batch: samples of a batch over all ranks.
        fingerprint: hash of the data.
        path: the data, for messages.
    """

    def __init__(self, counts: npt.NDArray[Any], seed: int, global_batch: int, fingerprint: str, path: object) -> None:
        self._counts = counts
        self._seed = seed
        self._fingerprint = fingerprint
        self._path = path
        self.batches = 0
        """Batches yielded since `order` began."""
        self.order = self._order_from(global_batch)
        """Which samples a batch consists of."""

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch that was yielded."""
        order = self.order
        return {
            "samples": sum(order.origins) + self.batches * order.global_batch,
            "origins": list(order.origins),
            "batches": self.batches,
            "global_batch": order.global_batch,
            "seed": self._seed,
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position; the number of ranks and the batch size may differ.

        With the same global batch the batches are those that would have come. With another one every bin goes on with
        its next sample, none comes twice and none is left out; without bins the samples keep their order too, and
        with bins the order in which the bins take turns is drawn anew for what is left of the epoch.

        Raises:
            InputError: the state belongs to other data, or is damaged.
            UsageError: it was saved with another seed, hence another order.
        """
        if state.get("fingerprint") != self._fingerprint:
            raise InputError(
                "data-mismatch", f"the saved data position is not one of {self._path}: use the data it was made with"
            )
        size = self.order.global_batch
        try:
            seed = int(state["seed"])
            saved = self._order_from(int(state["global_batch"]), [int(origin) for origin in state["origins"]])
            batches = int(state["batches"])
            if len(saved.origins) != saved.bins or min(batches, *saved.origins) < 0 or saved.global_batch < 1:
                raise ValueError("values out of range")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("file-damaged", f"the saved data position {dict(state)} is damaged ({error!r})") from error
        if seed != self._seed:
            raise UsageError(
                "settings-changed", f"the saved data position has seed {seed}, this run seed {self._seed}: use {seed}"
            )
        if saved.global_batch == size:
            self.order, self.batches = saved, batches
        else:
            self.order, self.batches = self._order_from(size, saved.positions(batches)), 0

    def _order_from(self, global_batch: int, origins: Sequence[int] | None = None) -> SampleOrder:
        return SampleOrder(self._counts, self._seed, global_batch, origins)
