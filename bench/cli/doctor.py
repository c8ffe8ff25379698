"""`bertbench doctor`: describe this machine and check which tools it can run."""

from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import Parameter

from analysis.render.tables import Facts
from bench.cli.options import Printed
from bench.cli.result import Result
from bench.machine.devices import Devices, find_devices
from bench.machine.doctor import MISSING, OK, WARNING, examine
from common.errors import BertbenchError


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions(Printed):
    """Check this machine: hardware, software, and which tools can run. Each problem comes with a remedy.

    Examples:
        bertbench doctor
        bertbench doctor --has cuda  # exit code 0 if there is a GPU, otherwise 1
    """

    has: Annotated[str | None, Parameter(choices=("cuda",))] = None
    """Print nothing and answer by exit code, 0 yes or 1 no, whether this is available: cuda."""


OPTIONS = {"doctor": DoctorOptions}


def run(options: DoctorOptions) -> Result:
    """Check the machine; with --has, return exit code 1 if the feature is missing."""
    devices: Devices | BertbenchError
    try:
        devices = find_devices()
    except BertbenchError as error:
        devices = error
    if options.has is not None:
        if isinstance(devices, BertbenchError):
            raise devices
        return Result(code=0 if devices.kind == options.has else 1)
    checks = examine(devices)
    rows = []
    for check in checks:
        mark = {OK: "ok", MISSING: "absent", WARNING: "warning"}[check.state]
        rows.append((check.name, f"{mark:<7}  {check.detail}"))
        if check.state != OK and check.remedy:
            rows.append(("", f"         -> {check.remedy}"))
    return Result(document=[asdict(check) for check in checks], blocks=[Facts(rows)])
