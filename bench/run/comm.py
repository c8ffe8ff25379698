"""The trials of `comm`."""

from dataclasses import dataclass

from bench.launch.world import World
from bench.machine.devices import Devices
from common.errors import UsageError
from common.registry import lookup
from records.kinds import COLLECTIVES, DTYPES, CollectiveTest, parse_size
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
        """Refuse names that do not exist, empty lists and sizes that are none."""
        for option, known in (("collectives", COLLECTIVES), ("dtypes", DTYPES)):
            for name in getattr(self, option):
                lookup(dict.fromkeys(known), name, option[:-1])
        if self.rounds < 1:
            raise UsageError("option-value", f"--rounds {self.rounds} must be at least 1")
        for count in self.devices:
            if count < 2:
                raise UsageError("option-value", f"--devices {count}: a collective needs two ranks: give 2 or more")
        self.test(self.collectives[0])

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
    worlds = _world_sizes(sweep, devices) if world is None else [world.check_devices(*sweep.devices)]
    trials = []
    for number in range(sweep.rounds):
        for name in dict.fromkeys(sweep.collectives):
            for dtype in dict.fromkeys(sweep.dtypes):
                for size in worlds:
                    test = sweep.test(name)
                    test.sizes(size)
                    trials.append(
                        Trial(
                            kind="comm", task="comm", implementation="torch", strategy="ddp", preset="", data="",
                            precision=dtype, world_size=size, nodes=1 if world is None else world.nodes,
                            device=devices.kind, round=number, collective=test.plain(),
                        )
                    )  # fmt: skip
    return trials


def _world_sizes(sweep: CommSweep, devices: Devices) -> list[int]:
    if devices.count < 2:
        what = "GPU" if devices.kind == "cuda" else "CPU core"
        raise UsageError(
            "device-missing",
            f"this node has {devices.count} {what}, but a collective needs two ranks: start one per node with "
            "`bertbench launch ... -- bertbench comm`",
        )
    default = [2] if devices.kind == "cpu" else [size for size in devices.default_world_sizes() if size > 1]
    sizes = list(dict.fromkeys(sweep.devices or default))
    if not sizes:
        raise UsageError(
            "device-unsupported", "CUDA shows a process only one MIG slice and NCCL cannot join them: use whole GPUs"
        )
    for size in sizes:
        devices.environment(size)
    return sizes
