"""What `--window` asks for, as text: marked steps, a named range, or a time."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis.names import is_like
from common.errors import UsageError

STEPS, KERNELS = "steps", "kernels"
_FORMS = "steps, kernels, step:N, step:N..M, range:NAME, or a time such as 1.2s..3.4s (units s, ms, us)"
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(s|ms|us)?\.\.(\d+(?:\.\d*)?|\.\d+)(s|ms|us)", re.IGNORECASE)
_STEP = re.compile(r"step:(\d{1,18})(?:\.\.(\d{1,18}))?")
_MARK = re.compile(r"(?:ProfilerStep\s*#|(?:bertbench:)?step\s+)(\d{1,18})", re.IGNORECASE)
_UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3}
_PREFIX = "bertbench:"
_LATEST_NS = 2**62  # with today's time added it still fits into 64 bits


@dataclass(frozen=True, slots=True)
class WindowChoice:
    """What was asked for."""

    text: str
    name: str = ""
    """Of a range."""
    steps: tuple[int, int] | None = None
    """First and last step."""
    time_ns: tuple[int, int] | None = None
    """Begin and end since the origin."""

    def matchers(self) -> Sequence[Callable[[str], bool]]:
        """Return what names the range, the exact match first; the next one counts where the one before finds none."""
        exact = lambda one: self.name in (one, one.removeprefix(_PREFIX))  # noqa: E731 (a list of two functions)
        return [exact, lambda one: is_like(one, self.name)] if "*" in self.name else [exact]


def parse_window(text: str) -> WindowChoice:
    """Return what a text asks for.

    Raises:
        UsageError: it is none of the forms, or it is empty.
    """
    if text in (STEPS, KERNELS):
        return WindowChoice(text)
    if text.startswith("range:") and text.removeprefix("range:").strip():
        name = text.removeprefix("range:")
        mark = _MARK.fullmatch(name)
        return WindowChoice(text, name, None if mark is None else (int(mark[1]), int(mark[1])))
    if (found := _STEP.fullmatch(text)) is not None:
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise UsageError("option-value", f"--window {text} is empty: step {last} is before {first}")
        return WindowChoice(text, steps=(first, last))
    if (times := _TIME.fullmatch(text)) is None:
        raise UsageError("option-value", f"--window {text} is not a window: give {_FORMS}")
    units = [_UNITS_NS[(unit or times[4]).lower()] for unit in (times[2], times[4])]
    moments = (float(value) * unit for value, unit in zip((times[1], times[3]), units, strict=True))
    begin, end = (round(min(moment, _LATEST_NS)) for moment in moments)
    if end <= begin:
        raise UsageError("option-value", f"--window {text} is empty: give an end that is after the begin")
    return WindowChoice(text, time_ns=(begin, end))
