"""The run directory: the one definition of what `bench` writes and `analysis` reads.

    runs/<name>/sweep.json
    runs/<name>/trials/<trial id>/trial.json  env.json  result.json  log.txt  profile/
                                  steps-<rank>.csv  rank-<rank>.json  telemetry-<node>.csv
                                  failure-<rank>.json  torchrun.json (how several ranks ended)
                                  collectives.csv (of kind comm: a row per size, placement and repetition)
                                  components.json  components-<rank>.csv (of kind components)
    runs/<name>/results.csv
    runs/<name>/max_batch.json                  of throughput --max-batch-search
    runs/<name>/report/

A run of kind train holds more: records.training. Every file is written whole by a rename, except the tables of a trial
and log.txt, which grow while it runs; a last line cut short by a crash is dropped by the reader. A trial is finished
when its result.json exists.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Code, InputError, SchemaError, UsageError
from records.documents import Environment, RankRecord, Result
from records.files import PathInFolder, read_record, typed_rows, write_record, write_rows
from records.schema import COLLECTIVE_COLUMNS, OPTION_COLUMNS, RESULT_COLUMNS, STEP_COLUMNS, TELEMETRY_COLUMNS
from records.trial import Trial

COLLECTED_FILE = "collected.json"
"""In profile/ of a trial under ncu: the tool's version, `limit_reached`, and `problems`."""


@dataclass(frozen=True, slots=True)
class TrialDirectory:
    """The files of one trial."""

    path: Path

    trial_json = PathInFolder("trial.json")
    """The resolved configuration."""
    env_json = PathInFolder("env.json")
    """Hardware, topology, versions, environment variables."""
    result_json = PathInFolder("result.json")
    """Status and metrics; its existence says the trial is finished."""
    log = PathInFolder("log.txt")
    """Output of all ranks."""
    profile = PathInFolder("profile")
    """What the profiler wrote."""
    collectives_csv = PathInFolder("collectives.csv")
    """The measurements of a trial of kind comm."""
    components_json = PathInFolder("components.json")
    """The parts of a step, of a trial of kind components (records.components), and the batch they are of."""

    events_jsonl = PathInFolder("events.jsonl")
    """What happened in an attempt of a training, besides steps: one JSON object per line."""

    def components_csv(self, rank: int) -> Path:
        """Times of the parts of a step on one rank, a row per part and round."""
        return self.path / f"components-{rank}.csv"

    def steps_csv(self, rank: int) -> Path:
        """Step records of one rank."""
        return self.path / f"steps-{rank}.csv"

    def telemetry_csv(self, node: int) -> Path:
        """Sensor readings of one node."""
        return self.path / f"telemetry-{node}.csv"

    def rank_json(self, rank: int) -> Path:
        """What one rank measured once (records.documents.RankRecord)."""
        return self.path / f"rank-{rank}.json"

    def failure_json(self, rank: int) -> Path:
        """Why a rank stopped early, written by that rank."""
        return self.path / f"failure-{rank}.json"

    def read_trial(self) -> Trial:
        """Return the trial. Raises SchemaError, also when a field has a value no trial can have."""
        record = read_record(self.trial_json)
        try:
            return Trial.from_json(record)
        except (UsageError, ValueError) as error:
            raise SchemaError("file-damaged", f"{self.trial_json} does not describe a trial: {error}") from error

    def read_result(self) -> dict[str, Any] | None:
        """Return result.json, or None while the trial is not finished."""
        return read_record(self.result_json, Result) if self.result_json.exists() else None

    def read_environment(self) -> dict[str, Any]:
        """Return env.json, empty if the trial died before writing it."""
        return read_record(self.env_json, Environment) if self.env_json.exists() else {}

    def ranks(self) -> list[int]:
        """Ranks that wrote step records, ascending."""
        return self._numbers("steps-*.csv")

    def read_steps(self, rank: int) -> list[dict[str, Any]]:
        """Return one rank's rows of STEPS, typed (None where empty)."""
        return typed_rows(self.steps_csv(rank), STEP_COLUMNS)

    def read_collectives(self) -> list[dict[str, Any]]:
        """Return the rows of collectives.csv, none without the file. Raises SchemaError."""
        return typed_rows(self.collectives_csv, COLLECTIVE_COLUMNS)

    def read_ranks(self) -> dict[int, dict[str, Any]]:
        """Return the rank records that exist, by rank."""
        return {rank: read_record(self.rank_json(rank), RankRecord) for rank in self._numbers("rank-*.json")}

    def read_telemetry(self) -> list[dict[str, Any]]:
        """Return the readings of all nodes as rows of TELEMETRY_COLUMNS plus `node`."""
        return [
            {**row, "node": node}
            for node in self._numbers("telemetry-*.csv")
            for row in typed_rows(self.telemetry_csv(node), TELEMETRY_COLUMNS)
        ]

    def _numbers(self, pattern: str) -> list[int]:
        """Numbers in the place of the star, ascending."""
        before, after = pattern.split("*")
        words = (path.name.removeprefix(before).removesuffix(after) for path in self.path.glob(pattern))
        return sorted(int(word) for word in words if word.isdecimal())


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run: one folder that is complete without the machine it came from."""

    path: Path

    sweep_json = PathInFolder("sweep.json")
    """The request of the command."""
    results_csv = PathInFolder("results.csv")
    """One row per trial."""
    max_batch_json = PathInFolder("max_batch.json")
    """Largest batches of all searches in this folder: in `found` a row per search, with its settings, micro_batch_size
    (0 if none fits), fails_at, failure, proved and tried ([size, status])."""
    report = PathInFolder("report")
    """Folder of the HTML page, figures and tables."""

    def trial(self, trial_id: str) -> TrialDirectory:
        """The folder of one trial."""
        return TrialDirectory(self.path / "trials" / trial_id)

    def trials(self) -> list[TrialDirectory]:
        """Folders of all trials that have a trial.json, by name."""
        return [TrialDirectory(path.parent) for path in sorted(self.path.glob("trials/*/trial.json"))]

    def require(self) -> "RunDirectory":
        """Return self. Raises InputError when this is no run directory or holds no trial."""
        if not self.trials():
            code: Code = "run-incomplete" if self.path.exists() else "path-missing"
            raise InputError(code, f"{self.path} holds no trials: give a folder that bertbench measured in")
        return self

    def read_max_batches(self) -> list[dict[str, Any]]:
        """Return the rows of max_batch.json, none where no search was made. Raises SchemaError when it is damaged."""
        path = self.max_batch_json
        return list(read_record(path)["found"]) if path.exists() else []

    def add_max_batches(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add results to max_batch.json, in place of those of the same configurations. Raises StorageError."""
        new = {tuple(row[name] for name in _MAX_BATCH_OF): dict(row) for row in rows}
        before = self.read_max_batches()
        earlier = [row for row in before if tuple(row.get(name) for name in _MAX_BATCH_OF) not in new]
        write_record(self.max_batch_json, {"found": [*earlier, *new.values()]})

    def write_results(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write results.csv, atomically. Raises StorageError."""
        write_rows(self.results_csv, RESULT_COLUMNS, rows)


# What a search for the largest batch is of.
_MAX_BATCH_OF = (
    "task", "implementation", "preset", "precision", "seq_len", "world_size", "grad_accum_steps", "strategy", "data",
    "memory_limit_gib", *OPTION_COLUMNS,
)  # fmt: skip


def is_run(path: Path) -> bool:
    """Return whether a path is a run directory."""
    return (path / "trials").is_dir()
