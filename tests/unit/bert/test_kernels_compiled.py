"""Every kernel compiles for sm_80, sm_90 and sm_100, without a GPU, into code that is as wide as memory is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.names import family

PROGRAM = Path(__file__).parents[2] / "support/kernel_compilations.py"
# Accesses below 128 bits: a key, a label, the numbers of a row; and rows of weights and sums in float32, which are as
# wide as what threads have of them, once for a program and not for every row.
SINGLE = {
    "norm forward": (1, 2), "norm backward": (3, 0), "gelu forward": (1, 0), "gelu backward": (1, 1),
    "heads": (0, 3), "loss forward": (2, 3), "loss backward": (4, 0), "embedding forward": (4, 2),
    "embedding backward": (6, 0), "cast": (1, 1),
}  # fmt: skip
# For two blocks of 8 warps on a multiprocessor 128 registers of a thread may be used, for 4 of 4 as many.
MOST_REGISTERS, MOST_SHARED_BYTES = 128, 8192


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    pytest.importorskip("triton", reason="Triton is not installed")
    own = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    own["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    child = subprocess.run([sys.executable, PROGRAM], env=own, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-4000:]
    found: dict[str, list[dict[str, Any]]] = json.loads(child.stdout)
    return found


@pytest.mark.parametrize("name", SINGLE)
def test_a_kernel_fits_its_processors(name: str, made: dict[str, list[dict[str, Any]]]) -> None:
    assert [code["architecture"] for code in made[name]] == ([90, 100] if name == "cast" else [80, 90, 100])
    for code in made[name]:
        assert code["stack_bytes"] == code["local_bytes"] == 0, "registers spill"
        assert 0 < code["registers"] <= MOST_REGISTERS
        assert code["shared_bytes"] <= MOST_SHARED_BYTES
        loads, stores = (sorted(code[each]) for each in ("loads", "stores"))
        single, written = SINGLE[name]
        assert loads[single:] and set(loads[single:]) == {128}
        assert stores[written:] == [128] * (len(stores) - written)
        assert name == "loss forward" or 128 in stores


def test_no_form_of_a_kernel_spills(made: dict[str, list[dict[str, Any]]]) -> None:
    for name in made.keys() - SINGLE.keys():
        (code,) = made[name]
        assert code["stack_bytes"] == code["local_bytes"] == 0 and code["registers"] <= MOST_REGISTERS, name


def test_every_kernel_is_looked_at_and_a_profile_knows_its_family(made: dict[str, list[dict[str, Any]]]) -> None:
    sources = [path.read_text() for path in (PROGRAM.parents[2] / "bert/speed/kernels").glob("*.py")]
    launched = {name for text in sources for name in re.findall(r"[^.]\blaunch\(\s*(\w+),", text)}
    names = {name: made[name][0]["name"] for name in SINGLE}
    assert launched == set(names.values())
    families = {name: family(kernel) for name, kernel in names.items()}
    assert families == {
        "norm forward": "norm", "norm backward": "norm", "gelu forward": "activation", "gelu backward": "activation",
        "heads": "copy", "loss forward": "softmax and loss", "loss backward": "softmax and loss",
        "embedding forward": "embedding", "embedding backward": "embedding", "cast": "copy",
    }  # fmt: skip
