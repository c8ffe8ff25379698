"""Which errors say that memory was refused."""

import errno

import pytest

from bench.run.out_of_memory import ran_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "x"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
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
