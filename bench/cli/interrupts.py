"""SIGTERM and Ctrl-C of the command line: a KeyboardInterrupt where Python can raise one, a moment later elsewhere.

Raised while a module is imported, it can be lost or end in another error: Python only prints what is raised in the
callbacks of its import locks, and an extension module that is interrupted half-way fails with an error of its own.
Raised in a callback of a weak reference or in a `__del__`, it is lost too.
"""

import signal
import sys
import time
import types

_AGAIN_SECONDS = 0.02
_LONGEST_IMPORT_SECONDS = 5.0
_IMPORT_FRAMES = "<frozen importlib."
_asked_at = 0.0


def listen() -> None:
    """Interrupt the command at SIGTERM, and at Ctrl-C where Python did so before."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, _interrupt)


def ignore() -> None:
    """Let nothing interrupt the command any more."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def not_raised(ended: "sys.UnraisableHookArgs") -> None:
    """Interrupt in a moment where a KeyboardInterrupt could not be raised; print any other exception."""
    if isinstance(ended.exc_value, KeyboardInterrupt):
        _try_again()
    else:
        sys.__unraisablehook__(ended)


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    """Raise KeyboardInterrupt, or try again in a moment if a module is being imported, but not for ever."""
    global _asked_at
    now = time.monotonic()
    if number != signal.SIGALRM:
        _asked_at = now
    if _importing(frame) and now - _asked_at < _LONGEST_IMPORT_SECONDS:
        _try_again()
        return
    # A batch system may send it twice, which must not interrupt the cleanup.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _importing(frame: types.FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT_FRAMES):
            return True
        frame = frame.f_back
    return False


def _try_again() -> None:
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
