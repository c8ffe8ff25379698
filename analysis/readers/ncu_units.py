"""Values and units as Nsight Compute writes them."""

import math
import re
from functools import lru_cache

# ncu scales times and bytes by 1000 (Nsight Compute CLI, "Metrics and Units"); names of 2019 to 2025.
_TIMES = {
    "s": 1.0, "second": 1.0, "sec": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6, "ns": 1e-9,
    "nsecond": 1e-9,
}  # fmt: skip
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SURELY_FINITE = 300
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def number(text: str) -> float | None:
    """Return the number that a field begins with; None for n/a, empty, text, and what is not finite.

    Commas separate thousands ("16,764,800,860,160.00"); "12,5", of a spreadsheet with decimal commas, is None rather
    than 125. Of "12 (3; 9)", a total with its instances, it is the total.
    """
    if text.isdecimal() and len(text) < _SURELY_FINITE:  # most values, and several times faster
        return float(text)
    words = text.strip()
    match = _NUMBER.match(words)
    if match is None or ((rest := words[match.end() :].lstrip()) and not rest.startswith(("(", "%"))):
        return None
    value = float(match[0].replace(",", ""))
    return value if math.isfinite(value) else None


@lru_cache(maxsize=4096)
def base_unit(unit: str) -> tuple[float, str]:
    """Return the factor that brings a value in `unit` to its base unit, and its name: ns, byte, byte/s, hz, inst."""
    unit = unit.strip()
    if unit in _TIMES:
        return _TIMES[unit] * 1e9, "ns"
    amount, slash, per = unit.partition("/")
    match = re.fullmatch(r"([KkMGTP]?)(byte|hz|Hz|inst|sector|request|cycle)s?", amount)
    factor, name = (_PREFIXES[match[1]], match[2].lower()) if match else (1.0, amount)
    if not slash:
        return factor, name
    if per in _TIMES:
        return (factor / _TIMES[per], "hz") if name == "cycle" else (factor / _TIMES[per], f"{name}/s")
    return factor, f"{name}/{per}"
