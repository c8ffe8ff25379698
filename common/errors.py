"""Errors a user can act on: a stable code, and a message that says what was given, what is needed and what to do."""

import errno
from typing import Literal, get_args

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
    "record-newer",
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
"""What went wrong, for scripts and tests: it stays the same where the message is worded anew."""

CODES: dict[Code, str] = {
    "option-unknown": "No such command, option or name of an option's key.",
    "option-choice": "A value that is none of the choices.",
    "option-value": "A value out of its range, or not of the form that is needed.",
    "option-missing": "An option that is needed was not given.",
    "option-conflict": "Two options that exclude or contradict each other.",
    "option-not-applicable": "An option that this task, strategy, device or kind of run does not have.",
    "batch-size-mismatch": "Batch sizes, accumulation and devices that do not multiply to the global batch.",
    "settings-changed": "A folder that holds work made with other settings than those given.",
    "path-missing": "A file or folder that does not exist.",
    "path-kind": "A file where a folder is needed, or the other way round.",
    "path-unreadable": "A file or folder that cannot be read (permission, input/output error).",
    "file-empty": "A file or folder that holds nothing.",
    "file-truncated": "A file that ends too early.",
    "file-damaged": "A file whose content contradicts its own form.",
    "file-format": "A file of another kind than is needed.",
    "file-encoding": "Text that is not in the encoding it should be in.",
    "file-limit": "A file larger, deeper or longer than the reader takes.",
    "file-unsafe": "A file that would run code, or read or write outside itself or its folder.",
    "file-changed": "A file that changed while it was in use.",
    "record-newer": "A record that a newer version of the suite wrote.",
    "record-foreign": "A file that is no record of the suite.",
    "columns-missing": "A table without a column that is needed.",
    "rows-invalid": "Rows or samples that cannot be used.",
    "labels-invalid": "No labels, or labels that the task cannot have.",
    "answers-invalid": "Predictions or scores that do not fit the questions.",
    "data-missing": "A folder without the samples, splits or files that are needed.",
    "data-unprepared": "Data that a `bertbench data` command has to prepare first.",
    "data-mismatch": "Data prepared with other lengths, tasks, versions or files than are asked for.",
    "data-ambiguous": "Several files, tasks or columns of which one is needed, and none was named.",
    "data-too-small": "Fewer samples, articles or tokens than are needed.",
    "vocabulary-mismatch": "A vocabulary that is none, or another one than the data's or the model's.",
    "weights-mismatch": "Weights, or a state of an optimizer, whose names or shapes are not those of the model.",
    "model-unsupported": "A model or weights of a kind that the suite does not have: another architecture, quantized.",
    "checkpoint-missing": "A run or folder without a checkpoint that can be used.",
    "run-incomplete": "A run directory without the trials or records that are needed.",
    "run-mismatch": "Runs or trials that cannot be compared or put together.",
    "trace-without-work": "A trace without the events that are asked about.",
    "trace-unsupported": "A trace of a device, tool or version that cannot be read.",
    "metrics-missing": "A table of counters without the metrics that are needed.",
    "disk-full": "No space is left; what was written before is intact.",
    "write-failed": "A file or folder that cannot be written; what was written before is intact.",
    "folder-occupied": "A file, or a folder with files, that must not be replaced.",
    "folder-locked": "A folder that another process is using.",
    "folder-not-shared": "A folder that not all nodes see.",
    "tool-missing": "A program that is not installed.",
    "tool-failed": "A program that ended with an error.",
    "tool-version": "A program or package of a version that cannot do what is asked.",
    "package-missing": "A Python package that is not installed.",
    "permission-missing": "Counters or samples that the system or its driver does not let this user read.",
    "device-missing": "Fewer devices, cores or files of a device than are asked for.",
    "device-unsupported": "A device that cannot do what is asked.",
    "out-of-memory": "Not enough memory.",
    "download-failed": "A server or network that did not give a file.",
    "download-mismatch": "A downloaded file that is not the one expected.",
    "nodes-disagree": "Nodes or ranks that were started with different settings.",
    "node-unreachable": "A node that did not answer in time.",
    "port-in-use": "A port that another job or program has taken.",
    "rank-failed": "A rank that ended with an error.",
    "worker-lost": "A worker process that ended before its work.",
    "training-diverged": "A loss that is no finite number.",
    "logits-not-finite": "A model that gives NaN or infinite numbers: damaged weights, or a precision that overflows.",
    "unsupported-combination": "Settings that are each possible, but not together.",
}
"""What each code means; docs/reference/errors.md is made of it."""

if set(get_args(Code)) != set(CODES):  # pragma: no cover - a mistake in this file
    raise AssertionError("each code has one meaning")


class BertbenchError(Exception):
    """An expected failure: shown as one message with its code, never as a traceback."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code: Code = code

    def __str__(self) -> str:
        return str(self.args[1])

    def shown(self) -> str:
        """Return the message as a person reads it, the code behind it."""
        return f"{self} [{self.code}]"


class UsageError(BertbenchError):
    """The request cannot be carried out as it was made."""


class InputError(BertbenchError):
    """A file or folder is not what it has to be; the message names it."""


class MissingToolError(BertbenchError):
    """An optional tool or package is not installed; the message says how to get it."""


class StorageError(BertbenchError):
    """A file could not be written (disk full, no permission); what was written before is intact."""


class LockedError(BertbenchError):
    """Another process is using the folder."""


class SchemaError(InputError):
    """A record was written by a newer version of the suite, or is no record at all."""


def read_code(error: OSError) -> Code:
    """Return the code of a file or folder that could not be read."""
    if isinstance(error, FileNotFoundError):
        return "path-missing"
    return "path-kind" if isinstance(error, IsADirectoryError | NotADirectoryError) else "path-unreadable"


def content_code(error: Exception) -> Code:
    """Return the code of a file that was opened, unpacked or decoded in vain."""
    if isinstance(error, OSError) and error.errno is not None:  # none: gzip and bz2 say so that their data are wrong
        return "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else read_code(error)
    if isinstance(error, EOFError):
        return "file-truncated"
    return "file-encoding" if isinstance(error, UnicodeDecodeError) else "file-damaged"
