"""A trial: all settings of one measured run, and the id derived from them."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from common.errors import UsageError
from common.train_spec import TrainSpec
from records.files import SCHEMA_VERSION

KINDS = ("throughput", "input", "probe", "profile", "train", "comm", "components", "measure")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial(TrainSpec):
    """All settings of one measured training run. Hashable; equal trials have equal ids."""

    kind: str = "throughput"
    """One of KINDS: input are batches alone, comm collectives alone, components the parts of a step alone; probe is a
    short trial of the max-batch search, measure any training script."""
    implementation: str = "bertbench"
    """Whose code trains: a name in bench.implementations, or "module:Class" of the user's own."""
    nodes: int = 1
    """Nodes that the ranks are spread over."""
    device: str = "cpu"
    """cpu or cuda."""
    devices_per_rank: int = 1
    """Devices that each rank drives; more than one where one process drives all of a node."""
    data_fingerprint: str = ""
    """Hash of the data, or of the lengths drawn from: other data is another trial."""
    round: int = 0
    """Repetition: competing trials are interleaved round by round."""
    start_iteration: int | None = None
    """First measured step; None finds the end of warm-up."""
    stop_iteration: int | None = None
    """One past the last measured step; None measures until `relative_half_width` or `max_seconds`."""
    min_steps: int = 10
    """Fewest measured steps of a window found automatically; of kind components fewest rounds."""
    max_steps: int = 1000
    """Most steps, warm-up included, when the window is found automatically; of kind components most rounds."""
    max_seconds: float = 30.0
    """Time limit in s for warm-up and measuring when the window is found automatically."""
    relative_half_width: float = 0.01
    """Half the width of the 95 % interval of the median step time, relative to the median, that ends measuring."""
    memory_limit_bytes: int | None = None
    """Private memory per rank in bytes; more is out of memory. None sets no limit."""
    threads_per_rank: int | None = None
    """CPU threads of a rank; None shares the physical cores equally."""
    profiler: str | None = None
    """Name in bench.profilers, for kind profile."""
    profiler_options: tuple[str, ...] = ()
    """Options of the profiler from --with: "name" or "name=value" words, sorted."""
    training: tuple[tuple[str, Any], ...] = ()
    """Of kind train: every setting of the training, (name, plain value), sorted; `round` is then the attempt."""
    command: tuple[str, ...] = ()
    """Of kind measure: the words of the command, without secrets; `implementation` then is its name."""
    collective: tuple[tuple[str, Any], ...] = ()
    """Of kind comm: what bench.run.comm measures, (name, plain value), sorted."""

    def __post_init__(self) -> None:
        """Refuse invalid trials, with the remedy."""
        for name, words in (("kind", KINDS), ("precision", PRECISIONS)):
            value = getattr(self, name)
            if value not in words and (self.kind, name, value) != ("measure", "precision", ""):
                raise UsageError("option-choice", f"{name}={value!r}: choose one of {', '.join(words)}")
        needed = {name: (getattr(self, name) >= 1, "at least 1") for name in _AT_LEAST_ONE}
        needed["max_seconds"] = 0 < self.max_seconds < math.inf, "above 0 and finite"
        needed["dropout"] = 0.0 <= self.dropout < 1.0, "in [0, 1)"
        for name, (holds, limits) in needed.items():
            if not holds:
                raise UsageError("option-value", f"{name}={getattr(self, name)} must be {limits}")
        start, stop = self.start_iteration, self.stop_iteration
        if (start is None) != (stop is None):
            raise UsageError("option-missing", "--start and --stop go together: give both")
        if start is not None and stop is not None and not 0 <= start < stop:
            raise UsageError("option-value", f"--start={start} must be at least 0 and below --stop {stop}")

    @property
    def ranks(self) -> int:
        """Processes over all nodes."""
        return max(1, self.world_size // self.devices_per_rank)

    @property
    def trial_id(self) -> str:
        """A readable, stable folder name that ends with a hash of every field: of data and model the fingerprint."""
        fields = {"allocator": "", **dataclasses.asdict(self)}  # so that ids stay those of earlier versions
        fields |= {name: float(fields[name]) for name in ("dropout", "max_seconds", "relative_half_width")}
        if self.data_fingerprint:
            del fields["data"]
        if self.model_fingerprint:
            fields["model"] = ""
        text = json.dumps(fields, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        words = (
            f"{self.task}-{self.implementation.replace(':', '.')}-{self.strategy}-{self.preset}-{self.precision}"
            f"-s{self.seq_len}-b{self.micro_batch_size}-a{self.grad_accum_steps}-n{self.world_size}-r{self.round}"
        )
        if self.kind == "comm":
            words = f"{dict(self.collective).get('name')}-{self.precision}-n{self.world_size}-r{self.round}"
        if self.kind == "measure":
            words = f"{_UNSAFE.sub('_', self.implementation)[:60]}-n{self.world_size}-r{self.round}"
        kind = "" if self.kind == "throughput" else f"{self.kind}-"
        return f"{kind}{words}-{digest}"

    def _fields(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "training": dict(self.training), "collective": dict(self.collective)}

    def row(self) -> dict[str, Any]:
        """Return every field for a row of results; None where it has no meaning for this kind of trial."""
        return self._fields() | dict.fromkeys(_WITHOUT_MEANING.get(self.kind, ()))

    def to_json(self) -> dict[str, Any]:
        """Return every field, with the schema version and the id."""
        return {"schema_version": SCHEMA_VERSION, "trial_id": self.trial_id, **self._fields()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Trial":
        """Read what `to_json` wrote. Raises ValueError (another type) or UsageError (an impossible value)."""
        pairs = {name: msgspec.convert(value.get(name) or {}, dict[str, Any]) for name in ("training", "collective")}
        return msgspec.convert({**value, **{name: sorted(pairs[name].items()) for name in pairs}}, cls)


_AT_LEAST_ONE = (
    "seq_len", "micro_batch_size", "grad_accum_steps", "world_size", "nodes", "min_steps", "max_steps",
    "devices_per_rank",
)  # fmt: skip
_OF_TRAINING = ("task", "implementation", "strategy", "preset", "seq_len", "micro_batch_size", "grad_accum_steps")
# Of a training script only its ranks are known, and its name, which stands as the implementation; nothing limits it.
_OF_SCRIPT = {field.name for field in dataclasses.fields(TrainSpec)} - {"world_size"}
_LIMITS = ("min_steps", "max_steps", "max_seconds", "relative_half_width")
_WITHOUT_MEANING = {"comm": (*_OF_TRAINING, "step"), "measure": (*sorted(_OF_SCRIPT), *_LIMITS)}
# Characters that no folder is named by.
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")
