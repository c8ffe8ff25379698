"""Whether this process may read the GPUs' performance counters: https://developer.nvidia.com/ERR_NVGPUCTRPERM."""

import re
from pathlib import Path

DENIED = "ERR_NVGPUCTRPERM"
"""What NVIDIA's tools say where it may not."""
ALLOW = (
    "start the container with start_container.sh --profiling, have the administrator set "
    "NVreg_RestrictProfilingToAdminUsers=0, or run as root (docs/how-to/container.md)"
)
"""How it may."""
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
DRIVER_VERSION = Path("/proc/driver/nvidia/version")
STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN, _CAP_PERFMON = 21, 38
_PERFMON_DRIVER = 565  # the first that CAP_PERFMON is enough for


def counters_denied() -> str | None:
    """Return why this process may not read the GPUs' counters; None where it may, or where nobody says."""
    admin_only = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", _text(DRIVER_PARAMETERS), re.MULTILINE)
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", _text(STATUS), re.MULTILINE)
    if admin_only is None or admin_only[1] == "0" or effective is None:
        return None
    capabilities = int(effective[1], 16)
    if capabilities >> _CAP_SYS_ADMIN & 1:
        return None
    driver = re.search(r"Kernel Module.*?\s(\d+)\.\d", _text(DRIVER_VERSION))
    if capabilities >> _CAP_PERFMON & 1:
        if driver is None or int(driver[1]) >= _PERFMON_DRIVER:
            return None
        return (
            f"driver {driver[1]} lets CAP_SYS_ADMIN alone read the counters; CAP_PERFMON does from {_PERFMON_DRIVER} on"
        )
    return "the driver keeps the counters for administrators (RmProfilingAdminOnly: 1)"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
