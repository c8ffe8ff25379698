"""The help of a command, in a process that tells what it has loaded."""

import subprocess
import sys
from pathlib import Path

from bench.cli.parser import application

ROOT = Path(__file__).resolve().parents[2]


def light_help(*words: str, heavy: tuple[str, ...]) -> str:
    """What the help of a command prints; fails where it loads one of these libraries."""
    program = (
        "import sys; from bench.cli.dispatch import call\n"
        f"try: call([*{words!r}, '--help'])\n"
        "except SystemExit as error: code = error.code\n"
        f"heavy = set({heavy!r}) & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def option_texts(options: type) -> dict[str, str]:
    """Return what the help says of each field of a dataclass of options."""
    arguments = application(options, "bertbench").assemble_argument_collection(parse_docstring=True)
    return {one.field_info.name: one.parameter.help or "" for one in arguments}
