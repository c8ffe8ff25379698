"""An all-reduce played message by message, and data-parallel steps on top of it: the truth that models are held to."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from support.fake_run import step_rows, write_trial

from bench.run.comm import sizes_of
from records.files import write_record
from records.run import RunDirectory
from records.schema import COLLECTIVE_COLUMNS
from records.trial import Trial

ENVIRONMENT = {"gpus": [{"name": "G"}] * 64, "cpu": {"physical_cores": 8}}


def ring_all_reduce_us(ranks: int, size_bytes: float, alpha_us: float, bandwidth_gb_s: float) -> float:
    """Play the ring: in each of 2(n-1) rounds a rank sends one n-th to the next, once it has received the last one."""
    begins = [0.0] * ranks
    message = alpha_us + size_bytes / ranks / bandwidth_gb_s / 1e3
    for _ in range(2 * (ranks - 1)):
        arrivals = [max(begins[rank], begins[rank - 1]) + message for rank in range(ranks)]
        begins = arrivals
    return max(begins)


def step_ms(
    works: Sequence[float], ready_ms: Sequence[float], buckets: Sequence[float], backward_ms: float, rest_ms: float,
    alpha_us: float, bandwidth_gb_s: float,
) -> float:  # fmt: skip
    """Play one step as events: a bucket is ready when it is on the slowest rank, a link carries one after another.

    Args:
        works: per rank, how slow it is (1: as the times say).
        ready_ms: of each bucket since the backward pass began.
        buckets: bytes.
        backward_ms: the whole pass.
        rest_ms: what comes before it and after it, scaled with the rank too.
        alpha_us, bandwidth_gb_s: of the links.
    """
    ranks, before = len(works), rest_ms / 2
    there = [max(works) * (before + ready) for ready in ready_ms]
    free = 0.0
    for bucket, size in enumerate(buckets):
        free = max(free, there[bucket]) + ring_all_reduce_us(ranks, size, alpha_us, bandwidth_gb_s) / 1e3
    ends = [slow * (before + backward_ms) for slow in works]
    return max(max(free, max(ends)) + slow * rest_ms / 2 for slow in works)


def write_collectives(
    run: Path, ranks: int, alpha_us: float, bandwidth_gb_s: float, *, noise: float = 0.01, seed: int = 0,
    sizes: tuple[int, int, float] = (1024, 256 << 20, 2.0), wrong: int = 0, nodes: int = 1, round_number: int = 0,
) -> Trial:  # fmt: skip
    """Write a trial of kind comm whose times are those of a ring, with noise per repetition."""
    random = np.random.default_rng(seed)
    test = {"name": "all_reduce", **dict(zip(("min_bytes", "max_bytes", "factor"), sizes, strict=True))}
    trial = Trial(kind="comm", task="comm", implementation="torch", strategy="ddp", preset="", data="",
                  precision="fp32", world_size=ranks, nodes=nodes, device="cuda", round=round_number,
                  collective=tuple(sorted(test.items())))  # fmt: skip
    write_trial(RunDirectory(run), trial, environment=ENVIRONMENT)
    directory = RunDirectory(run).trial(trial.trial_id)
    lines = [",".join(COLLECTIVE_COLUMNS)]
    for size in sizes_of(test, ranks):
        true = ring_all_reduce_us(ranks, size, alpha_us, bandwidth_gb_s)
        for number in range(5):
            time = true * float(np.exp(noise * random.standard_normal()))
            lines.append(f"{size},{size // 4},in_place,{number},10,{time:.6f},{wrong}")
    directory.collectives_csv.write_text("\n".join(lines) + "\n")
    for rank in range(ranks):
        write_record(directory.rank_json(rank), {"rank": rank})
    return trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A cluster whose truth is known."""

    alpha_us: float = 12.0
    bandwidth_gb_s: float = 20.0
    backward_ms: float = 60.0
    rest_ms: float = 40.0
    jitter: float = 0.02
    """Standard deviation of a rank's speed from step to step."""
    gradients: tuple[int, ...] = (3 << 20,) * 30
    """Bytes of each, the last registered first."""
    bucket_mib: int | None = None
    """Size of all buckets, where one is asked for."""

    def ready(self) -> list[float]:
        """When each gradient is ready."""
        share = np.cumsum(self.gradients) / sum(self.gradients)
        return [float(value) for value in share * self.backward_ms]

    def ends(self) -> list[int]:
        """Gradients up to the end of each part that ranks reduce."""
        return [len(self.gradients) * part // 4 for part in range(1, 5)]

    def steps(self, ranks: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return [count] times of steps in ms, and [count, ranks] own works, as the suite would measure them."""
        from analysis.metrics.scaling import backward_pass

        record = {
            "bytes": self.gradients,
            "ready_ms": self.ready(),
            "backward_ms": self.backward_ms,
            "ends": self.ends(),
        }
        buckets = backward_pass(record, self.bucket_mib)
        random = np.random.default_rng(seed)
        slow = 1 + self.jitter * random.standard_normal((count, ranks))
        times = [
            step_ms(row, buckets.ready_ms.tolist(), buckets.bucket_bytes.tolist(), self.backward_ms, self.rest_ms,
                    self.alpha_us, self.bandwidth_gb_s)
            if ranks > 1 else float(row[0]) * (self.backward_ms + self.rest_ms)
            for row in slow
        ]  # fmt: skip
        return np.array(times), slow * (self.backward_ms + self.rest_ms)

    def write_steps(
        self, run: Path, ranks: int, *, seed: int = 0, round_number: int = 0, timeline: bool = True
    ) -> Trial:
        """Write a throughput trial of this machine."""
        count, batch = 60, 8
        trial = Trial(
            strategy="ddp" if ranks > 1 else "single", world_size=ranks, device="cuda", precision="fp32",
            micro_batch_size=batch, start_iteration=0, stop_iteration=count, round=round_number,
            strategy_options=f'{{"bucket_mib":{self.bucket_mib}}}' if self.bucket_mib and ranks > 1 else "",
        )  # fmt: skip
        times, works = self.steps(ranks, count, seed)
        part = self.backward_ms / (self.backward_ms + self.rest_ms)
        steps = {}
        for rank in range(ranks):
            own, times_ms = works[:, rank], times.tolist()
            rows = step_rows(times_ms, batch, data_wait=0.0, real_tokens=128 * batch, padded_tokens=128 * batch)
            for row, work in zip(rows, own.tolist(), strict=True):
                waited = None if ranks == 1 else row["step_time_ms"] - work
                row |= {"forward_ms": 0.3 * work, "backward_ms": part * work, "communication_ms": waited}
            steps[rank] = rows
        record = {
            "bytes": list(self.gradients),
            "ready_ms": self.ready(),
            "backward_ms": self.backward_ms,
            "ends": self.ends(),
        }
        backward = {"peak_memory_bytes": 1, "backward": record if timeline else None}
        records = {rank: {"rank": rank, **backward} for rank in range(ranks)}
        return write_trial(RunDirectory(run), trial, steps, environment=ENVIRONMENT, ranks=records)
