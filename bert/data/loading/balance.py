"""Division of a global batch between ranks so that all have about the same work. Imports no torch."""

import numpy as np
import numpy.typing as npt

from bert.model.config import ModelConfig

Int64 = npt.NDArray[np.int64]

# A FLOP of attention takes this much of the time of a FLOP of the linear layers, on CPUs and GPUs alike. The division
# hardly depends on it: attention is a tenth of the work of 254 tokens in a large model.
_ATTENTION_COST = 3


def work_of(lengths: Int64, config: ModelConfig) -> Int64:
    """Return the work of sequences of these lengths [N] in a layer, in units of 4 H FLOPs of its linear layers.

    A token costs 8 H^2 + 4 H I FLOPs in the linear layers (I: intermediate size), a sequence of S tokens 4 H S^2 in
    attention. Heads are left out: their work is a small multiple of the tokens or the same for every sequence.
    """
    return lengths * (2 * config.hidden_size + config.intermediate_size) + _ATTENTION_COST * lengths**2


def divide(work: Int64, ranks: int) -> Int64:
    """Return which samples each rank computes, [ranks, B] numbers of the ranks x B samples with this `work`, ascending.

    Longest first: of each `ranks` samples in descending order of work, the rank with the least work so far takes the
    largest, the next one the second, and so on (Graham 1969, SIAM Journal on Applied Mathematics 17(2), with as many
    samples for every rank). If this does not lower the largest work of a rank, the samples stay in runs. It depends on
    `work` alone, in whole numbers: every rank finds the same division.
    """
    runs = np.arange(len(work)).reshape(ranks, -1)
    descending = np.argsort(-work, kind="stable").reshape(-1, ranks)
    own = np.empty_like(descending)
    loads = np.zeros(ranks, dtype=np.int64)
    for turn, samples in enumerate(descending):
        least = np.argsort(loads, kind="stable")
        own[turn, least] = samples
        loads[least] += work[samples]
    return np.sort(own.T, axis=1) if loads.max() < work[runs].sum(axis=1).max() else runs
