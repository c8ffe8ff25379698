"""What a lack of memory looks like."""

import errno
import re

# What torch's CPU allocator, CUDA, cuBLAS, the C++ runtime, oneDNN, threads and loaded libraries say.
_WORDS = re.compile(
    "allocate memory|out of memory|bad_alloc|bad allocation|ALLOC_FAILED|can't start new thread|failed to map segment"
)


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that memory was refused, on the host or on a device."""
    while error is not None:
        refused = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
        if refused or type(error).__name__ == "OutOfMemoryError" or _WORDS.search(str(error)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
