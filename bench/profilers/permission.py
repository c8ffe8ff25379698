"""Check the permission to read GPU performance counters: https://developer.nvidia.com/ERR_NVGPUCTRPERM."""

import re
from pathlib import Path

DENIED = "ERR_NVGPUCTRPERM"
"""Error of NVIDIA's tools without permission."""
ALLOW = (
    "start the container with start_container.sh --profiling, have the administrator set "
    "NVreg_RestrictProfilingToAdminUsers=0, or run as root (docs/how-to/container.md)"
)
"""How to get permission."""
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
DRIVER_VERSION = Path("/proc/driver/nvidia/version")
STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN, _CAP_PERFMON = 21, 38
_PERFMON_DRIVER = 565  # the first driver that accepts CAP_PERFMON


def counters_denied() -> str | None:
    """Return why this process may not read the GPUs' counters; None if it may, or if unknown."""
    admin_only = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", _text(DRIVER_PARAMETERS), re.MULTILINE)
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", _text(STATUS), re.MULTILINE)
    if admin_only is None or admin_only[1] == "0" or effective is None:
        return None
    capabilities = int(effective[1], 16)
    if capabilities >> _CAP_SYS_ADMIN & 1:
        return None
    if not capabilities >> _CAP_PERFMON & 1:
        return "the driver restricts the counters to administrators (RmProfilingAdminOnly is 1)"
    driver = re.search(r"Kernel Module.*?\s(\d+)\.\d", _text(DRIVER_VERSION))
    if driver is None or int(driver[1]) >= _PERFMON_DRIVER:
        return None
    return f"driver {driver[1]} needs CAP_SYS_ADMIN to read the counters; CAP_PERFMON needs {_PERFMON_DRIVER} or newer"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
