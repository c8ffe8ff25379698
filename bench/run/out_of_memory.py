"""What a lack of memory looks like."""

import errno

# What allocators say when memory is refused: torch's CPU allocator, CUDA and cuBLAS, the C++ runtime, oneDNN; then
# Python for a thread's stack, and the loader of libraries.
_WORDS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "cannot allocate memory",
    "out of memory",
    "bad_alloc",
    "bad allocation",
    "ALLOC_FAILED",
    "can't start new thread",
    "failed to map segment",
    "cannot map zero-fill pages",
    "cannot apply additional memory protection",
    "cannot create TLS data structures",
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


def memory_is_short() -> bool:
    """Whether 64 MiB are refused: CPython and libraries may then raise SystemError or OSError too."""
    try:
        bytearray(64 * 2**20)
    except MemoryError:
        return True
    return False
