"""Errors a user can act on: a stable code, and a message that says what was given, what is needed and what to do."""

import errno
from typing import Literal

_Options = Literal["option-unknown", "option-choice", "option-value", "option-missing", "option-conflict"]
_Setup = Literal["option-not-applicable", "batch-size-mismatch", "settings-changed", "unsupported-combination"]
_Paths = Literal["path-missing", "path-kind", "path-unreadable", "file-empty", "file-limit"]
_Files = Literal["file-truncated", "file-damaged", "file-format", "file-encoding", "file-unsafe"]
_Records = Literal["record-version", "record-foreign", "run-incomplete", "run-mismatch", "checkpoint-missing"]
_Rows = Literal["columns-missing", "rows-invalid", "labels-invalid", "answers-invalid"]
_Data = Literal["data-missing", "data-unprepared", "data-mismatch", "data-ambiguous", "data-too-small"]
_Models = Literal["vocabulary-mismatch", "weights-mismatch", "model-unsupported", "trace-without-work"]
_Storage = Literal["disk-full", "write-failed", "folder-occupied", "folder-locked"]
_Tools = Literal["tool-missing", "tool-failed", "tool-version", "package-missing"]
_Devices = Literal["permission-missing", "device-missing", "device-unsupported", "out-of-memory"]
_Network = Literal["download-failed", "download-mismatch", "nodes-disagree", "node-unreachable"]
_Training = Literal["rank-failed", "worker-lost", "training-diverged", "logits-not-finite"]
Code = Literal[
    _Options, _Setup, _Paths, _Files, _Records, _Rows, _Data, _Models, _Storage, _Tools, _Devices, _Network, _Training
]
"""Stable code of an error, for scripts and tests; docs/reference/errors.md has what each means."""


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
    """A record is damaged, of another version of bertbench, or no record."""


_PATHS: dict[type[OSError], Code] = {
    FileNotFoundError: "path-missing",
    IsADirectoryError: "path-kind",
    NotADirectoryError: "path-kind",
}


def read_code(error: Exception) -> Code:
    """Return the code of a file that was opened, unpacked or decoded in vain."""
    if isinstance(error, OSError) and error.errno is not None:  # none: damaged gzip or bz2
        return "disk-full" if error.errno == errno.ENOSPC else _PATHS.get(type(error), "path-unreadable")
    if isinstance(error, EOFError):
        return "file-truncated"
    return "file-encoding" if isinstance(error, UnicodeDecodeError) else "file-damaged"


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
