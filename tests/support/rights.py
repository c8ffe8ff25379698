"""Commands without root's rights over files."""

import os
import shutil
import subprocess

import pytest


def without_capabilities() -> list[str]:
    """Return a prefix that takes root's rights over files away; nothing for other users."""
    if os.getuid() != 0:
        return []
    prefix = [shutil.which("setpriv") or "", "--bounding-set=-all", "--inh-caps=-all"]
    if not prefix[0] or subprocess.run([*prefix, "true"], check=False).returncode != 0:
        pytest.skip("root may write everywhere, and setpriv cannot take that away here")
    return prefix
