"""Every word that the profilers pass to nsys and ncu is allowed by each supported version, and none is left out."""

from pathlib import Path

import pytest
from support import fake_ncu, fake_nsys
from support.profiler_options import NCU, NSYS, Options
from support.refusals import refused

from bench.profilers import load_profiler, ncu, nsys
from bench.profilers.base import Scope
from bench.profilers.ncu_metrics import metrics_of
from records.trial import Trial

WINDOW = {"kind": "profile", "start_iteration": 3, "stop_iteration": 6}
CPU, GPU, GPUS = (
    Trial(device=device, world_size=ranks, **WINDOW)  # type: ignore[arg-type]
    for device, ranks in (("cpu", 1), ("cuda", 1), ("cuda", 2))
)
METRICS = tuple(name.partition(".")[0] for name in metrics_of((9, 0))[0])


def scope(folder: Path, trial: Trial) -> Scope:
    directory = folder / "trial" / "profile"
    directory.mkdir(parents=True, exist_ok=True)
    return Scope(trial=trial, directory=directory)


def allowed(given: dict[str, str], options: Options) -> None:
    for name, value in given.items():
        assert name in options, f"{name} does not exist"
        values = options[name]
        assert values is None or set(value.split(",")) <= values, f"{name}={value}"


@pytest.fixture(params=NSYS)
def nsys_options(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Those of each version, which is the one on PATH."""
    options = NSYS[request.param]
    monkeypatch.setitem(fake_nsys.SWITCHES, request.param, " ".join(options))
    path = fake_nsys.install(tmp_path / "bin", request.param)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return options


@pytest.mark.parametrize("words", [(), ("sampling",), ("trace=cuda,nvtx",)], ids=str)
@pytest.mark.parametrize("trial", [CPU, GPU, GPUS], ids=["cpu", "gpu", "gpus"])
def test_nsys(trial: Trial, words: tuple[str, ...], nsys_options: Options, tmp_path: Path) -> None:
    command = load_profiler("nsys", words).wrap(["app"], scope(tmp_path, trial))
    given = dict(word.split("=", 1) for word in command[2 : command.index("app")])
    allowed(given, nsys_options)
    of_other_device = {"--nvtx-capture"} if trial.device == "cuda" else {"--cuda-graph-trace", "--cuda-memory-usage"}
    assert given.keys() == nsys_options.keys() - of_other_device


def test_an_nsys_whose_help_lacks_what_bounds_the_window_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvtx")
    monkeypatch.setattr(nsys, "_check_nvtx", lambda version: None)
    for missing in ("--capture-range", "--capture-range-end", "--output"):
        monkeypatch.setitem(fake_nsys.SWITCHES, "9999.1", " ".join(NSYS["2025.6"].keys() - {missing}))
        monkeypatch.setenv("PATH", f"{fake_nsys.install(tmp_path / 'bin', '9999.1').parent}:/usr/bin:/bin")
        with refused("tool-version", "nsys 9999.1", f"lacks {missing}:"):
            load_profiler("nsys").check(CPU)


@pytest.mark.parametrize("head", ["-t, --trace=", "-t, --trace=<api>[,<api>]", "-t, --trace arg (=cuda,nvtx)"])
def test_the_apis_are_found_however_the_help_heads_them(head: str) -> None:
    text = (
        f"  {head}\n     Possible values are 'cuda',\n     'nvtx' or 'none'.\n  --trace-fork-before-exec=\n     'no'.\n"
    )
    assert nsys.traceable(text) == ("cuda", "nvtx", "none")
    assert nsys.switches(f"\t--cuda-graph-trace=<granularity>[:<launch origin>]\n{text}") == {
        "--cuda-graph-trace", "--trace", "--trace-fork-before-exec",
    }  # fmt: skip


@pytest.fixture(params=NCU)
def ncu_options(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Those of each version, which is the one on PATH."""
    options = NCU[request.param]
    modes = options["--replay-mode"]
    assert modes is not None
    monkeypatch.setitem(fake_ncu.SWITCHES, request.param, " ".join(options))
    monkeypatch.setitem(fake_ncu.REPLAY, request.param, tuple(sorted(modes)))
    path = fake_ncu.install(tmp_path / "bin", request.param, METRICS)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setattr(ncu, "first_gpu_capability", lambda: (9, 0))
    monkeypatch.setattr(ncu, "_check_permission", lambda: None)
    return options


WORDS = [(), ("metrics=dram__bytes.sum", "kernels=5"), ("clock-control=base", "cache-control=none"), ("replay=range",)]


@pytest.mark.parametrize("words", WORDS, ids=str)
@pytest.mark.parametrize("trial", [GPU, pytest.param(GPUS, marks=pytest.mark.slow)], ids=["gpu", "gpus"])
def test_ncu(trial: Trial, words: tuple[str, ...], ncu_options: Options, tmp_path: Path) -> None:
    profiler = load_profiler("ncu", words)
    if "replay=range" in words and trial.ranks > 1:
        with refused("unsupported-combination", "replay=range"):
            profiler.check(trial)
        return
    profiler.check(trial)
    command = profiler.wrap(["app"], scope(tmp_path, trial))
    given, before = dict[str, str](), ""
    for word in command[1 : command.index("app")]:
        if word.startswith("--"):
            given[before := word] = ""
        else:
            given[before] = word
    allowed(given, ncu_options)
    ranges, several = "replay=range" in words, trial.ranks > 1
    assert ("--devices" in given) == several
    assert ("--nvtx-include" in given) == ranges and ("--profile-from-start" in given) != ranges
    if not ranges:
        # The manual's own example of --kernel-id, regex:^(?!foo), is such a lookahead.
        assert given["--kernel-name"].startswith("regex:^(?!") and "," not in given["--kernel-name"]


@pytest.mark.parametrize(
    ("name", "words", "waits"),
    [("torch", (), True), ("nsys", (), True), ("nsys", ("nvtx=off",), False), ("ncu", (), True), ("nvtx", (), True)],
)
def test_what_waits_for_the_gpu_at_each_step_end_says_so(name: str, words: tuple[str, ...], waits: bool) -> None:
    profiler = load_profiler(name, words)
    assert profiler.waits_at_step_ends(GPU) == waits and not profiler.waits_at_step_ends(CPU)
