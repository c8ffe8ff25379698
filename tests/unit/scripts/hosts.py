"""A machine made of a folder: fake engines and tools on PATH that record how they are called."""

import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BASH = shutil.which("bash") or "/bin/bash"
# Real tools; what could touch the system (rm, chown, chmod, dpkg, apt-get, setpriv ...) is always a fake one.
TOOLS = (
    *("bash", "cat", "cut", "dirname", "env", "find", "grep", "gzip", "head", "ln", "mkdir", "mktemp", "realpath"),
    *("sed", "sort", "tail", "tar", "test", "timeout", "xargs"),
)
NVIDIA_RUNTIME = '{"io.containerd.runc.v2":{},"nvidia":{}}'
# One write for each call, since the parts of a pipeline record at the same time.
RECORD = """printf '%s\\0' "${0##*/}" "$@" $'\\36' >>"$FAKE_LOG"\n"""

# What it answers comes from variables FAKE_...; a call to build or run is kept apart, with its environment.
ENGINE = """case $1 in
    --version) echo "$really version 99.0.0" ;;
    ps) [[ -z $ps_error ]] || { printf '%s\\n' "$ps_error" >&2; exit 1; } ;;
    info)
        case $3 in
            *Runtimes*) echo "$FAKE_RUNTIMES" ;;
            *CDISpecDirs*) [[ -n $FAKE_CDI_DIRS ]] && echo "$FAKE_CDI_DIRS" ;;
            *SecurityOptions*) echo "$FAKE_SECURITY" ;;
            "{{.Host.OCIRuntime.Name}}") [[ $really == podman ]] && echo "$FAKE_OCI_RUNTIME" ;;
            *) exit 98 ;;
        esac ;;
    image) [[ $2 == inspect && " $FAKE_IMAGES " == *" $3 "* ]] ;;
    build | run)
        printf '%s\\0' "${0##*/}" "$@" >"$FAKE_CALL"
        printf '%s' "${DOCKER_BUILDKIT-unset}" >"$FAKE_CALL.buildkit"
        exit "${FAKE_EXIT:-0}" ;;
    *) exit 99 ;;
esac
"""


@dataclass
class Host:
    """A machine: its PATH, what its tools answer, and what they were asked. Its user is 1000:100, without git."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bin = self._new("bin")
        self.work = self._new("work")
        self.log_file = self.folder / "log"
        self.call_file = self.folder / "call"
        for tool in TOOLS:
            self.real(tool)
        for tool in ("rm", "chown", "chmod", "apt-get", "dpkg", "useradd"):
            self.program(tool)
        self.program("git", "exit 128")
        self.caller(1000, 100)
        self.variables = {
            "FAKE_LOG": str(self.log_file),
            "FAKE_CALL": str(self.call_file),
            "FAKE_IMAGES": "bertbench:cuda bertbench:cpu",
            "FAKE_RUNTIMES": "{}",
            "FAKE_CDI_DIRS": "null",
            "FAKE_OCI_RUNTIME": "crun",
            "TEST_HOST": str(self._new("host")),
            "TMPDIR": str(self._new("tmp")),
            "HOME": str(self.folder),
            "PATH": str(self.bin),
        }

    def _new(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir()
        return path

    # ---- what the machine has ----

    def real(self, tool: str) -> bool:
        """Put the true tool on PATH; False where this machine has none."""
        found = shutil.which(tool)
        (self.bin / tool).unlink(missing_ok=True)
        if found is not None:
            (self.bin / tool).symlink_to(found)
        return found is not None

    def program(self, name: str, text: str = "", folder: Path | None = None) -> Path:
        """Put a fake tool on PATH (or into `folder`): it records its call, then runs `text`."""
        path = (folder or self.bin) / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!{BASH}\n{RECORD}{text}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def caller(self, uid: int, gid: int, groups: str = "") -> None:
        """Who calls, with what `id -G` says of the caller; of uid N it says what FAKE_GROUPS_N holds."""
        others = "name=FAKE_GROUPS_$2; [[ -n ${!name-} ]] && echo ${!name}"
        answers = {"1-u": uid, "1-g": gid, "1-G": groups or gid}
        cases = "".join(f"{asked}) echo {answer} ;; " for asked, answer in answers.items())
        self.program("id", f"case $#$1 in {cases}2-G) {others} ;; *) exit 1 ;; esac")

    def engine(self, name: str, really: str = "", error: str = "") -> None:
        """Install an engine: `really` is what it is behind its name, `error` why it does not answer."""
        self.program(name, f"really={really or name} ps_error={shlex.quote(error)}\n{ENGINE}")

    def gpu(self, driver: str = "580.65.06") -> None:
        """Two GPUs; the driver tells no version where it is empty."""
        self.program(
            "nvidia-smi",
            "[[ $1 == -L ]] && printf 'GPU %s: NVIDIA H100\\n' 0 1 && exit\n"
            f"[[ $* == *driver_version* && -n '{driver}' ]] && printf '%s\\n' '{driver}' '{driver}'",
        )

    def cdi(self) -> None:
        text = 'cdiVersion: "0.5.0"\nkind: nvidia.com/gpu\n'
        (self.path_of_host("/etc/cdi") / "nvidia.yaml").write_text(text, encoding="utf-8")

    def driver_lets(self, everybody: bool) -> None:
        """The driver's setting of who may read the GPUs' counters."""
        text = f'ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {int(not everybody)}\nRmMsg: ""\n'
        (self.path_of_host("/proc/driver/nvidia") / "params").write_text(text, encoding="utf-8")

    def path_of_host(self, path: str) -> Path:
        """The folder of a path such as /dev or /proc on this machine, made now."""
        folder = self.folder / "host" / path.lstrip("/")
        folder.mkdir(parents=True)
        return folder

    # ---- what is run on it ----

    def run(self, script: str | Path, *arguments: str, **extra: str) -> "subprocess.CompletedProcess[str]":
        """Run a script of the checkout."""
        return subprocess.run(
            [BASH, str(ROOT / script), *arguments],
            cwd=self.work,
            env={**self.variables, **extra},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def start(self, script: str | Path, *arguments: str, **extra: str) -> tuple[list[str], str]:
        """Run a script that has to succeed; the words of the engine's call and what was said on stderr."""
        outcome = self.run(script, *arguments, **extra)
        assert outcome.returncode == 0, outcome.stderr
        return self.call(), outcome.stderr

    def call(self) -> list[str]:
        """The words of the engine's last build or run, the engine's name first; fails when there was none."""
        words = self.call_file.read_text(encoding="utf-8").split("\0")[:-1]
        assert "--privileged" not in words
        return words

    def called(self) -> bool:
        return self.call_file.exists()

    def calls(self, name: str) -> list[list[str]]:
        """The arguments of every call of a fake tool, in order."""
        text = self.log_file.read_text(encoding="utf-8") if self.log_file.exists() else ""
        calls = [entry.split("\0")[:-1] for entry in text.split("\36\0")[:-1]]
        return [words[1:] for words in calls if words[0] == name]


def option(words: list[str], name: str) -> list[str]:
    """All values of an option."""
    return [words[i + 1] for i, word in enumerate(words) if word == name]


def options(words: list[str], wanted: dict[str, list[str]]) -> dict[str, list[str]]:
    """The values of the options that are `wanted`, to compare with it."""
    return {name: option(words, name) for name in wanted}


def refused(outcome: subprocess.CompletedProcess[str], *texts: str) -> None:
    """The last line of stderr is one message with all of `texts`; exit code 2; nothing on stdout."""
    assert (outcome.returncode, outcome.stdout) == (2, ""), outcome.stderr
    message = outcome.stderr.splitlines()[-1]
    assert [text for text in texts if text not in message] == [], message
