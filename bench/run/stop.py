"""A request to stop a training, from a signal or a time limit: what was done is saved before it ends."""

import signal
import time
import types
from typing import Any

# Batch systems and shells that pass a signal on can deliver the same one twice.
_SAME_SIGNAL_SECONDS = 0.5


class StopRequest:
    """Inside `with`, the first SIGTERM or Ctrl-C is a request, and a second one a KeyboardInterrupt."""

    def __init__(self) -> None:
        self._max_seconds: float | None = None
        self._began = time.monotonic()
        self._asked_at: float | None = None
        self._before: dict[int, Any] = {}
        self.signal: signal.Signals | None = None
        """What came, None where nothing did."""

    def __enter__(self) -> "StopRequest":
        """Listen."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        """Put back what listened before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: types.FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at, self.signal = now, signal.Signals(number)
        elif now - self._asked_at > _SAME_SIGNAL_SECONDS:
            raise KeyboardInterrupt

    def limit(self, max_seconds: float | None) -> None:
        """Ask for a stop this long after this object was made; None sets no limit."""
        self._max_seconds = max_seconds

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit has passed."""
        return self._max_seconds is not None and time.monotonic() - self._began >= self._max_seconds

    def wanted(self) -> bool:
        """Whether a stop is asked for."""
        return self.signal is not None or self.out_of_time

    def why(self) -> str:
        """Return what asked for the stop, in words; empty where nothing here did."""
        if self.signal is not None:
            return self.signal.name
        return f"the limit of {self._max_seconds:g} s" if self.out_of_time else ""
