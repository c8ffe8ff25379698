"""The trials of `comm`."""

import itertools
from dataclasses import dataclass

from bench.launch.world import World
from bench.machine.devices import Devices
from common.errors import UsageError
from common.registry import lookup
from records.kinds import DTYPES, CollectiveTest, parse_size
from records.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class CommSweep:
    """Which collectives to measure: every combination of the listed values is one trial, over all sizes."""

    collectives: tuple[str, ...] = ("all_reduce",)
    """Collectives to measure: all_reduce reduce_scatter all_gather broadcast."""
    devices: tuple[int, ...] = ()
    """Numbers of ranks; default 2 4 8 ... up to every GPU, or 2 ranks on the CPU."""
    dtypes: tuple[str, ...] = ("fp32",)
    """Data types: fp32 fp16 bf16."""
    min_bytes: str = "1K"
    """Smallest message size; K, M and G are powers of 1024."""
    max_bytes: str = "256M"
    """Largest message size; K, M and G are powers of 1024."""
    factor: float = 2.0
    """Ratio of one message size to the previous one."""
    repetitions: int = 5
    """Repetitions of each size; the median is reported."""
    iterations: int | None = None
    """Operations per repetition; default as many as take 20 ms, at most 100."""
    warmup: int = 3
    """Unmeasured operations of each size."""
    rounds: int = 1
    """Interleaved rounds of all sizes, each in new processes."""

    def __post_init__(self) -> None:
        """Refuse names that do not exist, and values that none can have."""
        for name in self.collectives:
            self.test(name)
        for dtype in self.dtypes:
            lookup(dict.fromkeys(DTYPES), dtype, "dtype")
        if self.rounds < 1 or min(self.devices, default=2) < 2:
            raise UsageError("option-value", "--rounds must be at least 1, and --devices at least 2")

    def test(self, name: str) -> CollectiveTest:
        """Return the test of one collective. Raises UsageError for a value that none can have."""
        return CollectiveTest(
            name=name,
            min_bytes=parse_size(self.min_bytes, "--min-bytes"),
            max_bytes=parse_size(self.max_bytes, "--max-bytes"),
            factor=self.factor,
            repetitions=self.repetitions,
            iterations=self.iterations,
            warmup=self.warmup,
        )


def expand_collectives(sweep: CommSweep, devices: Devices, world: World | None = None) -> list[Trial]:
    """Return the trials in the order they run, round by round."""
    sizes = _world_sizes(sweep, devices) if world is None else [world.check_devices(*sweep.devices)]
    names, dtypes = (list(dict.fromkeys(values)) for values in (sweep.collectives, sweep.dtypes))
    trials = []
    for number, name, dtype, size in itertools.product(range(sweep.rounds), names, dtypes, sizes):
        test = sweep.test(name)
        test.sizes(size)
        trials.append(
            Trial(
                kind="comm", task="comm", implementation="torch", strategy="ddp", preset="", data="", precision=dtype,
                world_size=size, nodes=1 if world is None else world.nodes, device=devices.kind, round=number,
                collective=test.plain(),
            )
        )  # fmt: skip
    return trials


def _world_sizes(sweep: CommSweep, devices: Devices) -> list[int]:
    default = [2] if devices.kind == "cpu" else [size for size in devices.default_world_sizes() if size > 1]
    sizes = list(dict.fromkeys(sweep.devices or default))
    if devices.count < 2 or not sizes:
        raise UsageError(
            "device-missing",
            f"this node has {devices.count} device, but a collective needs two whole ones: start one rank per node "
            "with `bertbench launch ... -- bertbench comm`",
        )
    for size in sizes:
        devices.environment(size)
    return sizes
