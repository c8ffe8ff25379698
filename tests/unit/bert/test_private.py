"""Names that PyTorch and DeepSpeed do not promise to keep: each is there and does what bert.private says."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from bert import private


def test_the_scaler_asks_an_optimizer_that_looks_for_overflows_itself() -> None:
    class Looking(torch.optim.SGD):
        _step_supports_amp_scaling = True
        found_inf: torch.Tensor

        def overflow(self) -> torch.Tensor:
            return torch.ones(())

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            seen.append(float(self.found_inf))

    seen: list[float] = []
    weight = nn.Parameter(torch.ones(2))
    optimizer, scaler = Looking([weight], lr=1.0), private.Scaler("cpu", init_scale=8.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert seen == [1.0] and scaler.get_scale() == 4.0


def test_the_installed_deepspeed_has_the_names_that_are_read() -> None:
    if not private_source("ops/__init__.py"):
        pytest.skip("deepspeed is not installed")
    sources = {
        "ops/__init__.py": ["__compatible_ops__"],
        "runtime/fp16/loss_scaler.py": ["self.cur_scale", "self.last_overflow_iter", "self.cur_iter"],
        "runtime/fp16/fused_optimizer.py": ["self.fp16_groups", "self.fp32_groups", "self.loss_scale_config"],
        "runtime/zero/stage_1_and_2.py": ["self.single_partition_of_fp32_groups", "self._hp_optimizer_states_linked",
                                          "def _lazy_init_hp_params_optimizer_state", "self.loss_scaler"],
        "runtime/bf16_optimizer.py": ["self.fp32_groups_flat_partition"],
        "runtime/zero/stage3.py": ["self.fp32_partitioned_groups_flat", "self.loss_scaler"],
    }  # fmt: skip
    for path, names in sources.items():
        source = private_source(path)
        assert [name for name in names if name not in source] == [], path


def private_source(path: str) -> str:
    """Return the text of a file of the installed DeepSpeed without importing it, empty if there is none."""
    spec = find_spec("deepspeed")
    places = spec.submodule_search_locations if spec else None
    return (Path(places[0]) / path).read_text() if places else ""


def test_the_groups_of_this_process_are_found(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert private.process_groups() == [dist.group.WORLD]
    finally:
        dist.destroy_process_group()
    assert private.process_groups() == []


def test_the_cpu_says_whether_it_multiplies_bf16() -> None:
    flags = re.findall(r"\w+", Path("/proc/cpuinfo").read_text())
    assert private.multiplies_bf16() == ("avx512_bf16" in flags)


def test_flash_attention_takes_the_arguments_that_are_given_by_place() -> None:
    schema = torch.ops.aten._flash_attention_forward.default._schema
    assert [argument.name for argument in schema.arguments if not argument.kwarg_only] == [
        "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal",
        "return_debug_mask",
    ]  # fmt: skip


def test_deepspeed_is_kept_from_its_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = {"deepspeed_shm_comm": True, "other": True}
    module = SimpleNamespace(ops=SimpleNamespace(__compatible_ops__=operations))
    monkeypatch.setitem(sys.modules, "deepspeed", module)
    private.without_shared_memory()
    assert operations == {"deepspeed_shm_comm": False, "other": True}


def test_no_other_module_uses_such_names() -> None:
    uses = re.compile(r"\b(torch|dist|deepspeed)\b[.\w]*\._(?!foreach|_)\w+")
    root = Path(private.__file__).parent
    found = {path.name: uses.findall(path.read_text()) for path in root.rglob("*.py") if path.name != "private.py"}
    assert {name: each for name, each in found.items() if each} == {}
