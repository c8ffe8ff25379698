"""Errors a user can act on: a stable code, and a message that says what was given, what is needed and what to do."""

import errno
from typing import Literal

Code = Literal[
    # Options of a command.
    "option-unknown",
    "option-choice",
    "option-value",
    "option-missing",
    "option-conflict",
    "option-not-applicable",
    "batch-size-mismatch",
    "settings-changed",
    # Files and folders that are read.
    "path-missing",
    "path-kind",
    "path-unreadable",
    "file-empty",
    "file-truncated",
    "file-damaged",
    "file-format",
    "file-encoding",
    "file-limit",
    "file-unsafe",
    "file-changed",
    "record-version",
    "record-foreign",
    # What they hold.
    "columns-missing",
    "rows-invalid",
    "labels-invalid",
    "answers-invalid",
    "data-missing",
    "data-unprepared",
    "data-mismatch",
    "data-ambiguous",
    "data-too-small",
    "vocabulary-mismatch",
    "weights-mismatch",
    "model-unsupported",
    "checkpoint-missing",
    "run-incomplete",
    "run-mismatch",
    "trace-without-work",
    "trace-unsupported",
    "metrics-missing",
    # What is written.
    "disk-full",
    "write-failed",
    "folder-occupied",
    "folder-locked",
    "folder-not-shared",
    # Tools, packages, devices.
    "tool-missing",
    "tool-failed",
    "tool-version",
    "package-missing",
    "permission-missing",
    "device-missing",
    "device-unsupported",
    "out-of-memory",
    # Networks, nodes, processes.
    "download-failed",
    "download-mismatch",
    "nodes-disagree",
    "node-unreachable",
    "port-in-use",
    "rank-failed",
    "worker-lost",
    # Training.
    "training-diverged",
    "logits-not-finite",
    "unsupported-combination",
]
"""Stable code of an error, for scripts and tests; messages may be reworded."""

CODES: dict[Code, str] = {
    "option-unknown": "An option or a key of an option that does not exist.",
    "option-choice": "A command, a task or a value that is not one of those that exist.",
    "option-value": "A value that the option cannot take: out of range, malformed, or not among its few words.",
    "option-missing": "A required option is missing.",
    "option-conflict": "Two options that exclude or contradict each other.",
    "option-not-applicable": "An option that this task, strategy, device or kind of run does not have.",
    "batch-size-mismatch": "Batch sizes, accumulation and devices that do not multiply to the global batch.",
    "settings-changed": "A folder that holds work with settings different from those given.",
    "path-missing": "A file or folder that does not exist.",
    "path-kind": "A file where a folder is needed, or the other way round.",
    "path-unreadable": "A file or folder that cannot be read (permission, input/output error).",
    "file-empty": "A file or folder that holds nothing.",
    "file-truncated": "A truncated file.",
    "file-damaged": "A damaged file: its content violates its own format.",
    "file-format": "A file of the wrong type.",
    "file-encoding": "Text that is not in the expected encoding.",
    "file-limit": "A file larger, deeper or longer than the reader accepts.",
    "file-unsafe": "A file that would run code, or access files outside its folder.",
    "file-changed": "A file that changed while in use.",
    "record-version": "A record written by another version of bertbench.",
    "record-foreign": "A file that bertbench did not write.",
    "columns-missing": "A table without a required column.",
    "rows-invalid": "Unusable rows or samples.",
    "labels-invalid": "Missing labels, or labels that the task does not have.",
    "answers-invalid": "Predictions or scores that do not match the questions.",
    "data-missing": "A folder without the required samples, splits or files.",
    "data-unprepared": "Data that a `bertbench data` command must prepare first.",
    "data-mismatch": "Data prepared with lengths, tasks, versions or files other than those requested.",
    "data-ambiguous": "Several candidate files, tasks or columns: name one.",
    "data-too-small": "Too few samples, articles or tokens.",
    "vocabulary-mismatch": "An invalid vocabulary, or one that differs from that of the data or the model.",
    "weights-mismatch": "Weights or optimizer state whose names or shapes do not match the model.",
    "model-unsupported": "Unsupported model or weights, such as another architecture or quantized weights.",
    "checkpoint-missing": "A run or folder without a usable checkpoint.",
    "run-incomplete": "A run directory without the required trials or records.",
    "run-mismatch": "Runs or trials that cannot be compared or combined.",
    "trace-without-work": "A trace without the requested events.",
    "trace-unsupported": "A trace of an unsupported device, tool or version.",
    "metrics-missing": "A table of counters without the required metrics.",
    "disk-full": "No space left; earlier files are intact.",
    "write-failed": "A file or folder that cannot be written; earlier files are intact.",
    "folder-occupied": "An existing file or non-empty folder that must not be replaced.",
    "folder-locked": "A folder in use by another process.",
    "folder-not-shared": "A folder not shared by all nodes.",
    "tool-missing": "A program that is not installed.",
    "tool-failed": "A program that ended with an error.",
    "tool-version": "A program or package in an unsupported version.",
    "package-missing": "A Python package that is not installed.",
    "permission-missing": "Counters or samples that this user has no permission to read.",
    "device-missing": "Fewer devices, cores or device files than requested.",
    "device-unsupported": "A device that does not support the request.",
    "out-of-memory": "Out of memory.",
    "download-failed": "A server or network that did not deliver a file.",
    "download-mismatch": "A downloaded file that is not the one expected.",
    "nodes-disagree": "Nodes or ranks that were started with different settings.",
    "node-unreachable": "A node that did not answer in time.",
    "port-in-use": "A port in use by another job or program.",
    "rank-failed": "A rank that ended with an error.",
    "worker-lost": "A worker process that ended before finishing its work.",
    "training-diverged": "A loss that is not finite.",
    "logits-not-finite": "A model that outputs NaN or infinity: damaged weights, or a precision that overflows.",
    "unsupported-combination": "Settings that are valid alone but not together.",
}
"""What each code means; docs/reference/errors.md is made of it."""


class BertbenchError(Exception):
    """An expected failure: shown as one message with its code, never as a traceback."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code: Code = code

    def __str__(self) -> str:
        return str(self.args[1])

    def shown(self) -> str:
        """Return the message as a person reads it, the code after it."""
        return f"{self} [{self.code}]"


class UsageError(BertbenchError):
    """The request cannot be carried out as it was made."""


class InputError(BertbenchError):
    """A file or folder is missing, damaged or of the wrong type; the message names it."""


class MissingToolError(BertbenchError):
    """An optional tool or package is not installed; the message says how to get it."""


class StorageError(BertbenchError):
    """A file could not be written (disk full, no permission); what was written before is intact."""


class LockedError(BertbenchError):
    """Another process is using the folder."""


class SchemaError(InputError):
    """A record was written by a newer version of bertbench, or is no record at all."""


def read_code(error: OSError) -> Code:
    """Return the code of a file or folder that could not be read."""
    if isinstance(error, FileNotFoundError):
        return "path-missing"
    return "path-kind" if isinstance(error, IsADirectoryError | NotADirectoryError) else "path-unreadable"


def content_code(error: Exception) -> Code:
    """Return the code of a file that was opened, unpacked or decoded in vain."""
    if isinstance(error, OSError) and error.errno is not None:  # none: gzip and bz2 say so that their data are wrong
        known: dict[int, Code] = {errno.ENOSPC: "disk-full", errno.EDQUOT: "disk-full", errno.EFBIG: "file-limit"}
        return known.get(error.errno) or read_code(error)
    if isinstance(error, EOFError):
        return "file-truncated"
    return "file-encoding" if isinstance(error, UnicodeDecodeError) else "file-damaged"


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
