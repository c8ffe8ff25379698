"""start_container.sh: as whom the command runs."""

import os
from pathlib import Path

import pytest
from hosts import SETPRIV, Host, option, refused
from test_container_gpus import SAFE, SCRIPT, start

ROOTLESS = '["name=seccomp,profile=builtin","name=rootless","name=cgroupns"]'


def test_command_runs_as_the_caller_without_limits_on_locked_memory(host: Host) -> None:
    host.engine("docker")
    words = start(host, SUDO_UID="1", SUDO_GID="2")
    assert option(words, "--user") == ["1000:100"]
    assert option(words, "--ulimit") == ["memlock=-1", "stack=67108864"]
    assert option(words, "--security-opt") == [SAFE]
    assert "--userns" not in words
    assert host.calls("chown") == host.calls("setpriv") == []


def test_callers_groups_are_given(host: Host) -> None:
    host.engine("docker")
    host.caller(1000, 100, "100 27 1005")
    assert option(start(host), "--group-add") == ["100", "27", "1005"]


def test_group_is_given_where_others_are_unknown(host: Host) -> None:
    host.engine("docker")
    host.program("id", "case $1 in -u) echo 1000 ;; -g) echo 100 ;; *) exit 1 ;; esac")
    assert option(start(host), "--group-add") == ["100"]


@pytest.mark.parametrize(("group", "user"), [({"SUDO_GID": "5678"}, "1234:5678"), ({}, "1234:1234")])
def test_under_sudo_the_command_runs_as_who_called_it(host: Host, group: dict[str, str], user: str) -> None:
    host.engine("docker")
    host.caller(0, 0)
    outcome = host.run(SCRIPT, "new/data", SUDO_UID="1234", **group)
    assert outcome.returncode == 0, outcome.stderr
    assert f"called by sudo: the command runs as {user}" in outcome.stderr
    assert option(host.call(), "--user") == [user]
    assert option(host.call(), "--group-add") == [user.partition(":")[2]]
    assert (host.work / "new/data").is_dir()
    assert host.calls("chown") == []


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_under_sudo_the_groups_are_those_of_who_called(host: Host, engine: str) -> None:
    host.engine(engine)
    host.caller(0, 0, "0 7")
    words = start(host, SUDO_UID="1234", SUDO_GID="5678", FAKE_GROUPS_1234="5678 27")
    assert option(words, "--group-add") == ["5678", "27"]
    assert {tuple(call[4:6]) for call in host.calls("setpriv")} == {("--groups", "5678,27")}


def test_under_sudo_folders_are_made_as_who_called(host: Host) -> None:
    host.engine("docker")
    host.caller(0, 0)
    start(host, "new/data", SUDO_UID="1234", SUDO_GID="5678")
    made = [call[4:] for call in host.calls("setpriv") if "mkdir" in call]
    wanted = [f"{host.work}/runs", f"{host.work}/new/data"]
    assert made == [["--groups", "5678", "mkdir", "-p", "--", path] for path in wanted]
    assert [Path(path).is_dir() for path in wanted] == [True, True]
    assert host.calls("chown") == []


def test_under_sudo_folders_that_the_caller_cannot_make_are_made_by_root_and_given(host: Host) -> None:
    host.engine("docker")
    host.caller(0, 0)
    host.program("setpriv", '[[ " $* " != *" mkdir "* ]] || exit 1\n' + SETPRIV)
    start(host, "new/data", SUDO_UID="1234", SUDO_GID="5678")
    assert host.calls("chown") == [["1234:5678", f"{host.work}/runs"], ["1234:5678", f"{host.work}/new/data"]]
    assert (host.work / "new/data").is_dir()


def test_under_sudo_folder_that_cannot_be_given_is_refused(host: Host) -> None:
    host.engine("docker")
    host.caller(0, 0)
    host.program("setpriv", '[[ " $* " != *" mkdir "* ]] || exit 1\n' + SETPRIV)
    host.program("chown", "exit 1")
    refused(host.run(SCRIPT, "data", SUDO_UID="1234"), "RUNS_DIR 'runs'", "cannot be created")
    assert not host.called()


def runs_as_root(host: Host, **variables: str) -> None:
    """Start the container as root, check that it says so, and that nothing changes hands."""
    host.engine("docker")
    host.caller(0, 0)
    outcome = host.run(SCRIPT, "data", **variables)
    assert outcome.returncode == 0, outcome.stderr
    assert "called by root: the command runs as root" in outcome.stderr
    assert option(host.call(), "--user") == ["0:0"]
    assert host.calls("chown") == host.calls("setpriv") == []


@pytest.mark.parametrize("uid", ["ada", "-1", "12x", "0x10", "01", " ", "1234\n5"])
def test_sudo_uid_that_is_no_number_counts_as_none(host: Host, uid: str) -> None:
    runs_as_root(host, SUDO_UID=uid, SUDO_GID="5678")


def test_under_sudo_folders_that_exist_keep_their_owner(host: Host) -> None:
    host.engine("docker")
    host.caller(0, 0)
    for name in ("data", "runs"):
        (host.work / name).mkdir()
    start(host, SUDO_UID="1234")
    assert host.calls("chown") == []


def test_under_sudo_the_callers_rights_decide_what_is_writable(host: Host) -> None:
    host.engine("docker")
    host.caller(0, 0)
    start(host, SUDO_UID="1234", SUDO_GID="5678")
    become = ["--reuid", "1234", "--regid", "5678", "--groups", "5678"]
    calls = host.calls("setpriv")
    assert {tuple(call[:6]) for call in calls} == {tuple(become)}
    assert [call[6:] for call in calls if call[6] == "test"] == [
        ["test", "-w", f"{host.work}/runs"],
        *(["test", f"-{right}", f"{host.work}/data"] for right in "rxw"),
    ]


def test_under_sudo_data_that_the_caller_may_not_write_is_only_said(host: Host) -> None:
    host.engine("docker")
    host.caller(0, 0)
    host.program("setpriv", "[[ $* != *' test -w '*/data ]] || exit 1\n" + SETPRIV)
    outcome = host.run(SCRIPT, "data", SUDO_UID="1234")
    assert outcome.returncode == 0
    assert "data is not writable for you" in outcome.stderr


@pytest.mark.parametrize("right", ["r", "x"])
def test_under_sudo_data_that_the_caller_may_not_read_is_refused(host: Host, right: str) -> None:
    host.engine("docker")
    host.caller(0, 0)
    host.program("setpriv", f"[[ $* != *' test -{right} '*/data ]] || exit 1\n" + SETPRIV)
    refused(host.run(SCRIPT, "data", SUDO_UID="1234"), f"DATA_DIR {host.work}/data cannot be read by you")
    assert not host.called()


def test_under_sudo_runs_that_the_caller_may_not_write_are_refused(host: Host) -> None:
    host.engine("docker")
    host.caller(0, 0)
    host.program("setpriv", "[[ $* != *' test -w '*/runs ]] || exit 1\n" + SETPRIV)
    refused(host.run(SCRIPT, "data", SUDO_UID="1234"), "RUNS_DIR", "not writable for you")
    assert not host.called()


def test_under_sudo_really(open_folder: Path) -> None:
    host = Host(open_folder)
    host.engine("docker")
    host.caller(0, 0)
    for tool in ("chown", "setpriv", "test"):
        assert host.real(tool)
    (host.work / "data").mkdir(mode=0o755)
    outcome = host.run(SCRIPT, "data", SUDO_UID="54321", SUDO_GID="54322")
    assert outcome.returncode == 0, outcome.stderr
    assert "data is not writable for you" in outcome.stderr
    runs = (host.work / "runs").stat()
    assert (runs.st_uid, runs.st_gid) == (54321, 54322)
    assert (host.work / "data").stat().st_uid == 0
    (host.work / "others").mkdir(mode=0o755)
    refused(host.run(SCRIPT, "data", SUDO_UID="54321", RUNS_DIR="others"), "others is not writable for you")
    (host.work / "data").chmod(0o700)
    refused(host.run(SCRIPT, "data", SUDO_UID="54321"), "data cannot be read by you")


def test_under_sudo_a_second_group_really_counts(open_folder: Path) -> None:
    host = Host(open_folder)
    host.engine("docker")
    host.caller(0, 0)
    for tool in ("chown", "setpriv", "test"):
        assert host.real(tool)
    shared = host.work / "shared"
    shared.mkdir()
    os.chown(shared, 0, 54399)
    shared.chmod(0o770)
    as_caller = {"SUDO_UID": "54321", "SUDO_GID": "54322", "RUNS_DIR": "shared/runs"}
    outcome = host.run(SCRIPT, "shared/new/data", FAKE_GROUPS_54321="54322 54399", **as_caller)
    assert outcome.returncode == 0, outcome.stderr
    assert "writable" not in outcome.stderr
    # Made by the caller, with all the folders above.
    owners = {path.stat().st_uid for path in (shared / "runs", shared / "new", shared / "new/data")}
    assert owners == {54321}
    refused(host.run(SCRIPT, "shared/new/data", **as_caller), "RUNS_DIR", "not writable for you")


def test_root_is_warned_that_files_become_roots(host: Host) -> None:
    runs_as_root(host)


def test_root_who_calls_sudo_is_root(host: Host) -> None:
    host.engine("docker")
    host.caller(0, 0)
    assert option(start(host, SUDO_UID="0", SUDO_GID="0"), "--user") == ["0:0"]
    assert host.calls("chown") == host.calls("setpriv") == []


def test_rootless_docker_maps_its_root_to_the_caller(host: Host) -> None:
    host.engine("docker")
    words = start(host, FAKE_SECURITY=ROOTLESS)
    assert option(words, "--user") == ["0:0"]
    assert option(words, "--security-opt") == [SAFE]
    assert not {"--ulimit", "--group-add"} & set(words)


def test_rootless_podman_keeps_the_callers_uid(host: Host) -> None:
    host.engine("podman")
    words = start(host)
    assert option(words, "--user") == ["1000:100"]
    assert option(words, "--userns") == ["keep-id"]
    assert option(words, "--ulimit") == ["host"]
    assert option(words, "--security-opt") == [SAFE, "label=disable"]


@pytest.mark.parametrize(("runtime", "groups"), [("crun", ["keep-groups"]), ("runc", []), ("crun-vm", []), ("", [])])
def test_rootless_podman_keeps_the_groups_where_its_runtime_can(host: Host, runtime: str, groups: list[str]) -> None:
    host.engine("podman")
    host.caller(1000, 100, "100 27 1005")
    assert option(start(host, FAKE_OCI_RUNTIME=runtime), "--group-add") == groups


@pytest.mark.parametrize(("extra", "user"), [({}, "0:0"), ({"SUDO_UID": "1234"}, "1234:1234")])
def test_podman_of_root_lifts_limits_and_maps_nothing(host: Host, extra: dict[str, str], user: str) -> None:
    host.engine("podman")
    host.caller(0, 0)
    words = start(host, **extra)
    assert option(words, "--user") == [user]
    assert "--userns" not in words
    assert option(words, "--ulimit") == ["memlock=-1", "stack=67108864"]
    assert option(words, "--security-opt") == [SAFE, "label=disable"]
    assert option(words, "--group-add") == [user.partition(":")[2]]
