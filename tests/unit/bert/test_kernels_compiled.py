"""Every kernel compiles for sm_80, sm_90 and sm_100, without a GPU, into code that is as wide as memory is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.triton_needed import need_triton

from analysis.names import family

PROGRAM = Path(__file__).parents[2] / "support/kernel_compilations.py"
# Kernel: its family in a profile, and how many of its loads and stores have fewer than 128 bits: keys, labels, numbers
# of a row, twice where they are loaded ahead; and of a vector in float32 what a thread has, once for a program.
KERNELS = {
    "dropout_layer_norm_forward": ("norm", 1, 2),
    "dropout_layer_norm_backward": ("norm", 6, 0),
    "bias_gelu_forward": ("activation", 1, 0),
    "bias_gelu_backward": ("activation", 1, 1),
    "attention_forward": ("attention", 4, 1),
    "attention_query_gradients": ("attention", 6, 2),
    "attention_key_gradients": ("attention", 10, 2),
    "cross_entropy_forward": ("softmax and loss", 2, 3),
    "cross_entropy_backward": ("softmax and loss", 4, 0),
    "embedding_layer_norm_forward": ("embedding", 4, 2),
    "embedding_layer_norm_backward": ("embedding", 6, 0),
    "dropout_layer_norm_forward to FP8": ("norm", 10, 3),
    "dropout_layer_norm_backward to FP8": ("norm", 12, 1),
    "quantize_both_ways to FP8": ("copy", 1, 0),
    "quantize_weights to FP8": ("copy", 9, 0),
    # Rows are written with 64 bits: 8 numbers, as many as a thread reads with 128.
    "bias_gelu_fp8_forward to FP8": ("activation", 2, 4),
    "bias_gelu_fp8_backward to FP8": ("activation", 2, 5),
    # Optimizers also have code for the ends of tensors and for gradients that are not aligned, 8 elements per thread.
    "optimizer_squares": ("optimizer", 22, 2),
    "optimizer_prepare": ("optimizer", 49, 26),
    "optimizer_update of AdamW": ("optimizer", 74, 32),
    "optimizer_update for moments": ("optimizer", 71, 18),
    "lamb_trust": ("optimizer", 21, 1),
    "optimizer_update by ratios": ("optimizer", 47, 16),
}
# Kernels that cast to FP8, which no earlier GPU than sm_89 can.
FP8 = {name for name in KERNELS if name.endswith("to FP8")}
# Vectors of sums and addresses, a few per tensor.
WITHOUT_ROWS = {"optimizer_prepare", "lamb_trust"}
# FP8 has two formats; LAMB counts steps once for all tensors.
CODES = {"quantize_both_ways to FP8": 2, "optimizer_prepare": 2}
# Kernels with tensor cores hold tiles in registers, up to the 255 that a thread can have, and in the shared memory of
# the smallest multiprocessor of their architecture: compute capability 8.6 for sm_80.
# Of each architecture: registers of a thread, and instructions for 64 queries and 64 keys with dropout, without a mask,
# as Triton 3.9 compiles them with 2 % more. On sm_90 the registers let 4, 4 and 3 programs run at once.
TILED = {
    "attention_forward": {80: (255, 530), 90: (128, 460), 100: (128, 550)},
    "attention_query_gradients": {80: (255, 515), 90: (128, 481), 100: (128, 530)},
    "attention_key_gradients": {80: (255, 690), 90: (168, 567), 100: (168, 637)},
}
MOST_TILED_BYTES = {80: 99 << 10, 90: 227 << 10, 100: 227 << 10}
MOST_SPILLED_BYTES = 96
# Registers of a thread times warps of a program: with so many, two programs fit into a multiprocessor's 65,536.
MOST_REGISTERS, MOST_SHARED_BYTES = 128 * 8, 8192
# A kernel that loads a tile ahead keeps it in shared memory: two programs have at most two thirds of the smallest.
LOADS_AHEAD, MOST_AHEAD_BYTES = {"dropout_layer_norm_backward"}, 33 << 10

Launches = list[dict[str, Any]]


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    need_triton()
    own = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    own["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    child = subprocess.run([sys.executable, PROGRAM], env=own, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-4000:]
    found: Launches = json.loads(child.stdout)
    return found


@pytest.mark.slow
def test_every_kernel_is_compiled_and_has_a_family(launches: Launches) -> None:
    sources = [path.read_text() for path in (PROGRAM.parents[2] / "bert/speed/kernels").glob("*.py")]
    named = {name for text in sources for name in re.findall(r"[^.]\blaunch\(\s*(\w+),", text)}
    assert {launch["kernel"] for launch in launches} == KERNELS.keys()
    assert named == {name.partition(" ")[0] for name in KERNELS}
    assert {name: family(name) for name in KERNELS} == {name: label for name, (label, _, _) in KERNELS.items()}


def test_reads_of_a_register_that_nothing_wrote_are_found() -> None:
    need_triton()
    from support.kernel_compilations import undefined_reads

    right = ["LDC R1, c[0x0][0x28] ;", "PRMT R27, R7.reuse, 0x7632, R27 ;", "LOP3.LUT R2, R17, R11, RZ ;"]
    wrong = ["LOP3.LUT R34, R1.reuse, 0xffff, RZ, 0xc0, !PT ;", "@P1 LOP3.LUT R28, R1, 0xffff, RZ, 0xc0, !PT ;"]
    for lines, found in ((right, 0), (right + wrong, 2)):
        assert undefined_reads("\n".join(f"        /*0cf0*/                   {line}" for line in lines)) == found


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_fits_its_processors(name: str, launches: Launches) -> None:
    own = [launch for launch in launches if launch["kernel"] == name]
    assert {launch["architecture"] for launch in own} >= ({90, 100} if name in FP8 else {80, 90, 100})
    for launch in own:
        spilled = launch["stack_bytes"] + launch["local_bytes"]
        assert spilled <= (MOST_SPILLED_BYTES if name in TILED else 0), f"registers spill: {launch}"
        assert launch["undefined_reads"] == 0, f"wrong code: {launch}"
        if name in TILED:
            registers, instructions = TILED[name][launch["architecture"]]
            assert launch["shared_bytes"] <= MOST_TILED_BYTES[launch["architecture"]]
            if launch["form"] == "bf16":
                assert launch["registers"] <= registers and 0 < launch["tile_instructions"] <= instructions, launch
        else:
            assert 0 < launch["registers"] * launch["warps"] <= MOST_REGISTERS
            assert launch["shared_bytes"] <= (MOST_AHEAD_BYTES if name in LOADS_AHEAD else MOST_SHARED_BYTES)
        if launch["form"] == "bf16":
            _, loads, stores = KERNELS[name]
            assert set(sorted(launch["loads"])[loads:]) == (set() if name in WITHOUT_ROWS else {128})
            assert set(sorted(launch["stores"])[stores:]) <= {128}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_numbers_of_rows_share_their_code(name: str, launches: Launches) -> None:
    codes = {
        launch["code"] for launch in launches
        if launch["kernel"] == name and launch["form"] == "bf16" and launch["architecture"] == 90
    }  # fmt: skip
    assert len(codes) == CODES.get(name, 1)
