"""`bertbench doctor`: what this machine is and what can run on it."""

import json
from dataclasses import dataclass

from bench.cli.options import parse
from bench.machine.devices import Devices, find_devices
from bench.machine.doctor import MISSING, OK, WARNING, examine, has, to_json
from common.errors import BertbenchError


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions:
    """Say what this machine is, which tools can run here, and the remedy for each lack."""

    json: bool = False
    """Print the checks as JSON."""
    has: str | None = None
    """Only answer by exit code (0 yes, 1 no) whether this is here: cuda, two-devices, bf16 or hf."""


OPTIONS = {"doctor": DoctorOptions}


def main(argv: list[str]) -> int:
    """Run the command."""
    options = parse(DoctorOptions, argv, "bertbench doctor")
    devices: Devices | BertbenchError
    try:
        devices = find_devices()
    except BertbenchError as error:
        devices = error
    if options.has is not None:
        if isinstance(devices, BertbenchError):
            raise devices
        return 0 if has(options.has, devices) else 1
    checks = examine(devices)
    if options.json:
        print(json.dumps(to_json(checks), indent=2))
        return 0
    marks = {OK: "ok     ", MISSING: "absent ", WARNING: "warning"}
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{marks[check.state]}  {check.name:<{width}}  {check.detail}")
        if check.state != OK and check.remedy:
            print(f"{'':9}{'':<{width}}  -> {check.remedy}")
    return 0
