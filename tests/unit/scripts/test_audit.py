"""docker/audit.sh: "none is known" only where every package was looked up; a message and no traceback elsewhere."""

import subprocess
from pathlib import Path

import pytest
from hosts import BASH, ROOT

ANSWERS = {
    "none": ("", "No known vulnerabilities found", 0),
    "some": ("Name Version ID\njinja2 2.4.1 PYSEC-2014-8\n", "Found 1 known vulnerability in 1 package", 1),
    "mirror": ("", "ERROR:pip_audit._cli:torch: Dependency not found on PyPI and could not be audited", 1),
    "offline": ("", "Traceback (most recent call last):\n  File x\nrequests.exceptions.ConnectionError: no route", 1),
}


def audit(tmp_path: Path, answer: str, *options: str) -> "subprocess.CompletedProcess[str]":
    found, said, code = ANSWERS[answer]
    (tmp_path / "found").write_text(found)
    (tmp_path / "said").write_text(said + "\n")
    tool = tmp_path / "pip-audit"
    tool.write_text(
        f'#!{BASH}\nprintf "%s\\n" "$@" >"{tmp_path}/asked"\ncat "{tmp_path}/found"\n'
        f'cat "{tmp_path}/said" >&2\nexit {code}\n'
    )
    tool.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    argv = [BASH, str(ROOT / "docker/audit.sh"), *options]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_every_lock_is_audited_and_no_package_may_be_left_out(tmp_path: Path) -> None:
    done = audit(tmp_path, "none", "--ignore-vuln", "PYSEC-2026-1")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert {f"docker/locks/{path.name}" for path in (ROOT / "docker/locks").glob("*.txt")} <= set(asked)
    assert "--strict" in asked and asked[-2:] == ["--ignore-vuln", "PYSEC-2026-1"]
    assert done.returncode == 0 and "no known vulnerabilities in the" in done.stdout


def test_known_vulnerabilities_are_listed(tmp_path: Path) -> None:
    done = audit(tmp_path, "some")
    assert done.returncode == 1 and "PYSEC-2014-8" in done.stdout and "Found 1 known" in done.stdout


@pytest.mark.parametrize(("answer", "reason"), [("mirror", "torch: Dependency not found"), ("offline", "no route")])
def test_what_was_not_found_out_is_no_good_news(answer: str, reason: str, tmp_path: Path) -> None:
    done = audit(tmp_path, answer)
    assert done.returncode == 2 and reason in done.stderr and "--vulnerability-service osv" in done.stderr
    assert "no known vulnerabilities" not in done.stdout and "Traceback" not in done.stdout + done.stderr
    assert not list(tmp_path.glob("tmp.*")), "nothing is left behind"
