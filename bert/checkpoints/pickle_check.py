"""Reads the pickle of a PyTorch file without running it, and refuses what the weights of a model have no use for.

`torch.load(weights_only=True)` runs nothing of the file, yet calls what can take minutes or all memory: bytearray(n),
codecs, the hash of tuples that hold one tuple again and again.
"""

import pickletools  # nosec B403 # names the opcodes of a pickle and runs none
from typing import Any, BinaryIO

_REBUILDERS = (
    "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
    "_rebuild_parameter_with_state", "_rebuild_sparse_tensor", "_rebuild_qtensor", "_rebuild_meta_tensor_no_storage",
)  # fmt: skip
_CALLED = {
    "collections.OrderedDict", "torch.Size", "torch.device", "torch.serialization._get_layout",
    *(f"torch._utils.{name}" for name in _REBUILDERS),
}  # fmt: skip
_ENCODE = "_codecs.encode"
_CALLS = {"REDUCE", "NEWOBJ", "NEWOBJ_EX", "INST", "OBJ"}
_TUPLES = {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_WORK_PER_BYTE = 8
_LEAST_WORK = 10_000


class UnsafePickleError(ValueError):
    """The pickle holds a call that no weights need; its text says which."""


class ExcessivePickleError(ValueError):
    """The pickle takes more work than its size justifies."""


class _Global(str):
    """The name of a global."""

    __slots__ = ()


def check_pickle(file: BinaryIO) -> None:
    """Read one pickle, from where it begins to its end.

    Raises:
        UnsafePickleError: it calls something that is not known to be harmless.
        ExcessivePickleError: its keys, and what is called with, have far more parts than the pickle has bytes.
        ValueError, IndexError, KeyError: it is damaged.
    """
    _Machine(file).run()


class _Machine:
    """The stack of a pickle: texts, tuples and lists as they are, names of globals, None for the rest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._work = 0
        self._most_work = 0

    def run(self) -> None:
        """Read to the end of the pickle."""
        begin = self._file.tell()
        for op, argument, position in pickletools.genops(self._file):
            self._most_work = _LEAST_WORK + _WORK_PER_BYTE * ((position or 0) - begin)
            self._step(op, argument)

    def _step(self, op: pickletools.OpcodeInfo, argument: Any) -> None:
        if op.name == "MARK":
            self._marks.append(len(self._stack))
        elif "PUT" in op.name or op.name == "MEMOIZE":
            self._memo[len(self._memo) if argument is None else int(argument)] = self._stack[-1]
        elif "GET" in op.name:
            self._stack.append(self._memo[int(argument)])
        else:
            value = self._made(op.name, argument, self._popped(op))
            if op.stack_after:
                self._stack.append(value)

    def _popped(self, op: pickletools.OpcodeInfo) -> list[Any]:
        """Take from the stack what an opcode takes."""
        before = op.stack_before
        if pickletools.markobject in before:
            begin = self._marks.pop() - before.index(pickletools.markobject)
        else:
            begin = len(self._stack) - len(before)
        if begin < 0:
            raise IndexError(f"{op.name} takes more than the stack has")
        found = self._stack[begin:]
        del self._stack[begin:]
        return found

    def _made(self, name: str, argument: Any, taken: list[Any]) -> Any:
        """Return what an opcode leaves on the stack."""
        if name in _TUPLES:
            return tuple(taken)
        if name == "EMPTY_LIST":
            return []
        if name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD"):
            if "APPEND" in name and isinstance(taken[0], list):
                taken[0].extend(taken[1:])
            elif "SETITEM" in name:
                self._count(taken[1::2], texts=False)
            return taken[0]
        if name == "GLOBAL":
            return _Global(argument.replace(" ", "."))
        if name == "BINPERSID":
            self._count(taken[0], texts=False)
        elif name in _CALLS:
            if len(taken) != 2:  # such as OBJ, which PyTorch never writes
                raise ValueError("it calls what is no function")
            self._call(*taken)
        return argument if isinstance(argument, str) else None

    def _call(self, called: Any, arguments: Any) -> None:
        if not isinstance(called, _Global) or not isinstance(arguments, tuple):
            raise ValueError("it calls what is no function")
        is_known = called in _CALLED and (called != "collections.OrderedDict" or not arguments or _is_list(arguments))
        if not is_known and not (called == _ENCODE and arguments[1:] == ("latin1",)):
            raise UnsafePickleError(called)
        self._count(arguments, texts=True)

    def _count(self, value: Any, texts: bool) -> None:
        """Add the parts of a value, each as often as it is reached, and the lengths of its texts."""
        pending = [value]
        while pending:
            part = pending.pop()
            self._work += len(part) if texts and type(part) is str else 1
            if isinstance(part, list | tuple):
                pending.extend(part)
            if self._work + len(pending) > self._most_work:
                raise ExcessivePickleError


def _is_list(arguments: tuple[Any, ...]) -> bool:
    """Whether a call has one list, whose items are known."""
    return len(arguments) == 1 and isinstance(arguments[0], list)
