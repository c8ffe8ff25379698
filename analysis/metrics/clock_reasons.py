"""Why a GPU's clocks are what they are: the bits of NVML's clock event (throttle) reasons, and their names."""

CLOCK_REASONS: dict[int, str] = {
    0x001: "idle",
    0x002: "clocks set by the user",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
    0x100: "display clock",
    0x200: "board limit",
    0x400: "reliability voltage",
}
"""Names of the bits (nvml.h, nvmlClocksEventReason* and nvmlClocksThrottleReason*)."""
POWER_CAP = 0x004
"""Usual under full load, and so apart from the others."""
SLOWED_DOWN = 0x008 | 0x020 | 0x040 | 0x080
"""What slows a GPU down because it is too hot or short of power."""


def reason_names(mask: int) -> tuple[str, ...]:
    """Return the names of the reasons in a bit mask, a bit without a name as "bit 0x..."."""
    unknown = [1 << bit for bit in range(mask.bit_length()) if mask >> bit & 1 and 1 << bit not in CLOCK_REASONS]
    return tuple([name for bit, name in CLOCK_REASONS.items() if mask & bit] + [f"bit {bit:#x}" for bit in unknown])
