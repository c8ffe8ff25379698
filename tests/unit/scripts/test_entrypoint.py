"""docker/entrypoint.sh: a home and a name for any uid, and for --profiling one capability for it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hosts import BASH, ROOT, Host, on_terminal

SHOW = 'echo "$HOME|$USER|$LOGNAME|$1"; exit 5'
NO_NEW_PRIVILEGES = ("setpriv", "--no-new-privs")
# Where they stand in CapEff and the like.
BITS = {"chown": 0, "sys_admin": 21, "perfmon": 38}


def workspace(folder: Path) -> Path:
    """A copy of what the image has in /workspace; returns the entrypoint."""
    docker = folder / "workspace" / "docker"
    docker.mkdir(parents=True)
    (docker.parent / "runs").mkdir()
    for name in ("entrypoint.sh", "greeting.txt"):
        shutil.copy(ROOT / "docker" / name, docker)
    return docker / "entrypoint.sh"


@pytest.fixture
def entrypoint(tmp_path: Path) -> Path:
    return workspace(tmp_path)


def show(host: Host, entrypoint: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Start the entrypoint with a command that shows what it was given."""
    return host.run(entrypoint, BASH, "-c", SHOW, "x", "a b", **extra)


def capabilities(status: str) -> dict[str, int]:
    return {name: int(value, 16) for name, value in re.findall(r"^Cap(\w+):\s*([0-9a-f]+)$", status, re.MULTILINE)}


# ---- home, name, command ----


def test_becomes_the_command_with_its_exit_code(host: Host, entrypoint: Path) -> None:
    outcome = show(host, entrypoint, USER="ada", LOGNAME="lovelace")
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (5, f"{host.folder}|ada|lovelace|a b\n", "")


def test_command_gets_the_process_and_so_its_signals(host: Host, entrypoint: Path) -> None:
    command = [BASH, str(entrypoint), BASH, "-c", "echo $$"]
    with subprocess.Popen(command, env=host.variables, stdout=subprocess.PIPE, text=True) as process:
        shown, _ = process.communicate(timeout=30)
    assert int(shown) == process.pid


def test_command_that_does_not_exist_is_an_error(host: Host, entrypoint: Path) -> None:
    outcome = host.run(entrypoint, "no-such-command")
    assert outcome.returncode == 127
    assert "no-such-command" in outcome.stderr


@pytest.mark.parametrize("command", [["-x"], ["-c", "env"], ["--help"]])
@pytest.mark.parametrize("extra", [{}, {"BERTBENCH_RUN_AS": "1:2:", "BERTBENCH_CAPABILITY": "perfmon"}])
def test_command_that_begins_with_a_dash_is_a_command(
    host: Host, entrypoint: Path, command: list[str], extra: dict[str, str]
) -> None:
    host.program("getent", "exit 2")
    outcome = host.run(entrypoint, *command, **extra)
    assert (outcome.returncode, outcome.stdout) == (127, "")
    assert f"{command[0]}: not found" in outcome.stderr
    assert "invalid option" not in outcome.stderr
    host.program(command[0], "exit 7")
    outcome = host.run(entrypoint, *command, **extra)
    assert (outcome.returncode, outcome.stderr) == (7, "")
    assert host.calls(command[0]) == [command[1:]]


def test_uid_without_a_name_gets_a_home_and_a_name(host: Host, entrypoint: Path) -> None:
    host.program("id", "echo 54321; [[ $1 == -u ]]")
    host.program("getent", "exit 2")
    outcome = show(host, entrypoint, HOME="/")
    home = host.folder / "tmp/home-54321"
    assert outcome.stdout == f"{home}|54321|54321|a b\n"
    assert (outcome.returncode, outcome.stderr) == (5, "")
    assert home.is_dir()


@pytest.mark.parametrize("home", ["/", "/no/such/home"])
def test_home_that_cannot_be_written_is_replaced(host: Host, entrypoint: Path, home: str) -> None:
    outcome = show(host, entrypoint, HOME=home, USER="ada")
    assert outcome.stdout == f"{host.folder}/tmp/home-1000|ada|ada|a b\n"


def test_home_of_an_account_is_used(host: Host, entrypoint: Path) -> None:
    host.program("getent", f"[[ $* == 'passwd 1000' ]] && echo ada:x:1000:100::{host.work}:/bin/bash")
    assert show(host, entrypoint, HOME="", USER="ada").stdout.startswith(f"{host.work}|")


def test_name_of_an_account_is_used(host: Host, entrypoint: Path) -> None:
    host.program("id", "[[ $1 == -un ]] && echo grace || echo 1000")
    assert show(host, entrypoint).stdout.split("|")[1:3] == ["grace", "grace"]


def test_second_start_with_the_same_home_is_quiet(host: Host, entrypoint: Path) -> None:
    assert [show(host, entrypoint, HOME="/").returncode for _ in range(2)] == [5, 5]


def test_results_that_will_not_be_kept_are_warned_of(host: Host, entrypoint: Path) -> None:
    (entrypoint.parents[1] / "runs").rmdir()
    outcome = show(host, entrypoint)
    assert outcome.returncode == 5
    for text in (f"{entrypoint.parents[1]}/runs cannot be written", "uid 1000", "start_container.sh", "mount"):
        assert text in outcome.stderr


# ---- greeting ----


def greeted(host: Host, entrypoint: Path, *command: str) -> bool:
    code, shown = on_terminal([BASH, str(entrypoint), *command], host.work, host.variables, typed="exit 3\n")
    assert code == (3 if command == ("/bin/bash",) else 0), shown
    greeting = (ROOT / "docker/greeting.txt").read_text(encoding="utf-8")
    assert greeting.strip()
    return greeting in shown


def test_shell_on_a_terminal_greets(host: Host, entrypoint: Path) -> None:
    assert greeted(host, entrypoint, "/bin/bash")


@pytest.mark.parametrize("command", [("/bin/bash", "-c", "true"), ("env",)])
def test_command_on_a_terminal_does_not_greet(host: Host, entrypoint: Path, command: tuple[str, ...]) -> None:
    assert not greeted(host, entrypoint, *command)


def test_shell_without_a_terminal_does_not_greet(host: Host, entrypoint: Path) -> None:
    outcome = host.run(entrypoint, "/bin/bash")
    assert (outcome.returncode, outcome.stdout) == (0, "")


def test_greeting_names_what_exists() -> None:
    from bench.cli.dispatch import COMMANDS

    text = (ROOT / "docker/greeting.txt").read_text(encoding="utf-8")
    commands = re.findall(r"^ +(?:\d +)?(bertbench|bash) (\S+)(.*?)(?:   .*)?$", text, re.MULTILINE)
    assert len(commands) >= 3
    for program, name, _ in commands:
        assert name in COMMANDS if program == "bertbench" else (ROOT / name).is_file(), name
    workloads = [rest.split()[0] for program, name, rest in commands if program == "bertbench" and rest]
    assert set(workloads) <= {"pretrain"}
    assert [name for name in re.findall(r"[\w/]+\.md", text) if not (ROOT / name).is_file()] == []
    mounts = re.findall(r"target=([\w/]+)", (ROOT / "start_container.sh").read_text(encoding="utf-8"))
    assert [folder for folder in re.findall(r"(?<=[ ;])/(?:data|workspace/runs)\b", text) if folder not in mounts] == []
    assert {"/data", "/workspace/runs"} <= set(re.findall(r"/[\w/]+", text))


# ---- another user with one capability ----


@pytest.mark.parametrize(
    ("run_as", "groups"),
    [("1234:5678:5678,27,1005", "5678,27,1005"), ("1234:5678:27", "27"), ("1234:5678:", "5678"), ("1234:5678", "5678")],
)
def test_run_as_becomes_the_user_with_the_groups_and_the_one_capability(
    host: Host, entrypoint: Path, run_as: str, groups: str
) -> None:
    host.program("setpriv", "exit 9")
    extra = {"BERTBENCH_RUN_AS": run_as, "BERTBENCH_CAPABILITY": "perfmon"}
    assert show(host, entrypoint, **extra).returncode == 9
    one = "-all,+perfmon"
    assert host.calls("setpriv") == [
        [
            *("--reuid", "1234", "--regid", "5678", "--groups", groups),
            *(f"--inh-caps={one}", f"--ambient-caps={one}", f"--bounding-set={one}"),
            *("bash", str(entrypoint), BASH, "-c", SHOW, "x", "a b"),
        ]
    ]


def test_run_as_forgets_roots_names_and_comes_here_once(host: Host, entrypoint: Path) -> None:
    host.program("getent", "exit 2")
    host.program("id", "echo 1234; [[ $1 == -u ]]")
    root = {"HOME": str(host.folder), "USER": "root", "LOGNAME": "root"}
    outcome = show(host, entrypoint, BERTBENCH_RUN_AS="1234:5678:5678", BERTBENCH_CAPABILITY="sys_admin", **root)
    assert outcome.stdout == f"{host.folder}/tmp/home-1234|1234|1234|a b\n"
    assert (outcome.returncode, outcome.stderr) == (5, "")
    assert len(host.calls("setpriv")) == 1


def test_nobody_is_become_unless_asked(host: Host, entrypoint: Path) -> None:
    assert show(host, entrypoint, BERTBENCH_RUN_AS="").returncode == 5
    assert host.calls("setpriv") == []


@pytest.mark.parametrize("extra", [{}, {"BERTBENCH_CAPABILITY": ""}])
def test_run_as_without_a_capability_is_refused(host: Host, entrypoint: Path, extra: dict[str, str]) -> None:
    outcome = show(host, entrypoint, BERTBENCH_RUN_AS="1234:5678:5678", **extra)
    assert (outcome.returncode == 0, outcome.stdout) == (False, "")
    assert "BERTBENCH_CAPABILITY: must be set together with BERTBENCH_RUN_AS" in outcome.stderr
    assert "unbound" not in outcome.stderr
    assert host.calls("setpriv") == []


@pytest.mark.parametrize(
    ("run_as", "groups"), [("54321:54322:", "54322"), ("54321:54322:54322,54399", "54322 54399")], ids=["one", "two"]
)
@pytest.mark.parametrize("name", BITS)
def test_run_as_really_leaves_exactly_one_capability(open_folder: Path, name: str, run_as: str, groups: str) -> None:
    """Under no-new-privileges, as start_container.sh starts every container."""
    held = capabilities(Path("/proc/self/status").read_text(encoding="utf-8"))
    if not held["Prm"] & held["Bnd"] & 1 << BITS[name]:
        pytest.skip(f"these tests run without CAP_{name.upper()}")
    entrypoint = workspace(open_folder)
    (open_folder / "tmp").mkdir()
    (open_folder / "tmp").chmod(0o1777)
    outcome = subprocess.run(
        [
            *NO_NEW_PRIVILEGES,
            "bash",
            str(entrypoint),
            "bash",
            "-c",
            'id -u; id -g; id -G; echo "$HOME"; env; cat /proc/self/status',
        ],
        cwd=open_folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/root",
            "USER": "root",
            "TMPDIR": f"{open_folder}/tmp",
            "BERTBENCH_RUN_AS": run_as,
            "BERTBENCH_CAPABILITY": name,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split("\n")[:4] == ["54321", "54322", groups, f"{open_folder}/tmp/home-54321"]
    assert "USER=54321\n" in outcome.stdout
    assert "NoNewPrivs:\t1\n" in outcome.stdout
    assert "BERTBENCH_RUN_AS" not in outcome.stdout
    assert capabilities(outcome.stdout) == dict.fromkeys(("Inh", "Prm", "Eff", "Bnd", "Amb"), 1 << BITS[name])
    assert (open_folder / "tmp/home-54321").stat().st_uid == 54321
    assert "runs cannot be written by uid 54321" in outcome.stderr


def test_run_as_really_starts_nothing_where_the_container_lacks_the_capability(open_folder: Path) -> None:
    entrypoint = workspace(open_folder)
    without = [shutil.which("setpriv") or "", "--bounding-set=-perfmon", "--inh-caps=-perfmon"]
    outcome = subprocess.run(
        [*without, "bash", str(entrypoint), "echo", "started"],
        env={"PATH": os.environ["PATH"], "BERTBENCH_RUN_AS": "54321:54322:54322", "BERTBENCH_CAPABILITY": "perfmon"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert outcome.returncode != 0
    assert outcome.stdout == ""
    assert "setpriv" in outcome.stderr
