"""Which errors say that memory was refused."""

import errno
import subprocess
import sys

import pytest

from bench.run.out_of_memory import memory_is_short, ran_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "x"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
        # What dlopen of the GNU C library says of a library's pages.
        ImportError("libc10.so: cannot map zero-fill pages"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        ImportError("libgomp.so.1: cannot apply additional memory protection after relocation"),
        ImportError("libstdc++.so.6: cannot create TLS data structures"),
    ],
    ids=str,
)
def test_a_refusal_of_memory_is_known(error: Exception) -> None:
    assert ran_out_of_memory(error)
    try:
        raise ValueError("cannot start") from error
    except ValueError as raised:
        assert ran_out_of_memory(raised)


@pytest.mark.parametrize(
    "error", [ImportError("libfoo.so: cannot open shared object file"), OSError(errno.ENOSPC, "x")]
)
def test_other_errors_are_no_lack_of_memory(error: Exception) -> None:
    assert not ran_out_of_memory(error)


def test_memory_is_short_where_a_limit_leaves_little_of_it() -> None:
    assert not memory_is_short()
    code = (
        "import resource, psutil; from bench.run.out_of_memory import memory_is_short; "
        "most = psutil.Process().memory_info().data + 32 * 2**20; "
        "resource.setrlimit(resource.RLIMIT_DATA, (most, most)); print(memory_is_short())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
