"""How the processes of a trial get and keep main memory: variables of the C library, for every implementation alike.

glibc gives large blocks back to the kernel as soon as they are freed, and the next step has every page of them zeroed
again; that is a tenth to a fifth of a step of BERT-base on a CPU. The variables are those of mallopt(3) and of glibc's
manual, section "Memory Allocation Tunables".
"""

import platform

from common.errors import UsageError
from common.registry import lookup

DEFAULT = "default"
_KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}

ALLOCATORS: dict[str, dict[str, str]] = {
    DEFAULT: {},
    # Freed memory stays with the process.
    "keep": _KEEP,
    # Besides, the kernel is asked for pages of 2 MiB (transparent huge pages, where they are `madvise` or `always`).
    "huge-pages": {**_KEEP, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}


def allocator_environment(name: str) -> dict[str, str]:
    """Return the variables of an allocator by name; "" is the default.

    Raises:
        UsageError: no such allocator, or the C library of this machine does not know the variables.
    """
    variables = lookup(ALLOCATORS, name or DEFAULT, "allocator")
    if variables and platform.libc_ver()[0] != "glibc":
        raise UsageError(
            "option-not-applicable",
            f"--allocators {name} are settings of glibc, which Python does not run on here: leave it out",
        )
    return variables
