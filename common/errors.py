"""Errors a user can act on. Each message says what was given, what is needed and what to do."""


class BertbenchError(Exception):
    """An expected failure: shown as one message, never as a traceback."""


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
