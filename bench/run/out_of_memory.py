"""What a lack of memory looks like."""

import errno

# What torch's CPU allocator, CUDA, cuBLAS, the C++ runtime, oneDNN, threads and loaded libraries say.
_WORDS = (
    "allocate memory",
    "out of memory",
    "bad_alloc",
    "bad allocation",
    "ALLOC_FAILED",
    "can't start new thread",
    "failed to map segment",
)


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that memory was refused, on the host or on a device."""
    found: BaseException | None = error
    while found is not None:
        refused = isinstance(found, MemoryError) or getattr(found, "errno", None) == errno.ENOMEM
        if refused or type(found).__name__ == "OutOfMemoryError" or any(words in str(found) for words in _WORDS):
            return True
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return False
