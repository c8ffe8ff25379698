"""docker/package_sources.sh: what pip on this machine is configured for."""

import os
import subprocess
from pathlib import Path

from hosts import BASH, ROOT


def test_pips_settings_come_from_its_variables_and_files(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nextra-index-url =\n    https://one\n    https://two\n[install]\nfind-links = /wheels\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": str(file), "PIP_INDEX_URL": "https://variable"}
    names = ("index-url", "extra-index-url", "find-links", "trusted-host")
    script = f"source {ROOT}/docker/package_sources.sh; for name in {' '.join(names)}; do pip_setting $name; done"
    outcome = subprocess.run([BASH, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert outcome.stdout.splitlines()[:1] == ["https://variable"]
    assert outcome.stdout.splitlines()[1].split()[-2:] == ["https://one", "https://two"]
    assert outcome.stdout.splitlines()[2].split()[-1] == "/wheels"
