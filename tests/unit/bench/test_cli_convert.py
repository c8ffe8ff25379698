"""`bertbench convert` says what it read, what became of it and what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.refusals import check_refusal, refused

from bench.cli import convert
from bench.cli.main import run
from bert.checkpoints.ours import load_model, save_model
from bert.model.config import ModelConfig
from bert.model.models import BertForPretraining

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ModelConfig(num_layers=1, hidden_size=8, num_heads=2, intermediate_size=16, vocab_size=13, max_positions=8)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    folder = tmp_path / "source"
    save_model(folder, BertForPretraining(CONFIG))
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    return folder


def test_the_table_counts_what_was_read_and_what_became_of_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert.main([str(source), str(tmp_path / "hf")]) == 0
    captured = capsys.readouterr()
    shown = dict(line.split(None, 1) for line in captured.out.replace("tensors read", "read").splitlines())
    assert shown["read"] == shown["converted"] == "26"
    assert (shown["missing"], shown["unexpected"]) == ("0", "0")
    assert (
        shown["parameters"]
        == f"{sum(value.numel() for value in load_file(tmp_path / 'hf/model.safetensors').values()):,}"
    )
    assert shown["model"].startswith("BertForPreTraining: 1 layers, hidden size 8, 13 word pieces")
    assert str(tmp_path / "hf") in shown["folder"] and captured.err == ""


def test_missing_and_unexpected_names_are_listed(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert.main([str(source), str(tmp_path / "hf")])
    weights = tmp_path / "hf" / "model.safetensors"
    state = {name: value for name, value in load_file(weights).items() if not name.startswith("bert.pooler.")}
    save_file({**state, **{f"head.{number}": torch.zeros(1) for number in range(30)}}, weights)
    capsys.readouterr()
    convert.main([str(tmp_path / "hf"), str(tmp_path / "again")])
    shown = capsys.readouterr().out
    assert "missing:\n  pooler.dense.weight\n  pooler.dense.bias\n" in shown
    assert "unexpected:\n  head.0\n" in shown and "... and 10 more (--json lists all)" in shown


def test_json_is_the_summary_and_nothing_else(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vocab = tmp_path / "other.txt"
    vocab.write_text("\n".join(PIECES[:12]))
    convert.main([str(source), str(tmp_path / "new"), "--to", "bertbench", "--vocab", str(vocab), "--json"])
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert captured.err == ""
    assert summary["source_format"] == summary["target"] == "bertbench"
    assert summary["vocab"] == str(vocab) and summary["config"]["num_layers"] == 1
    assert summary["missing"] == summary["unexpected"] == summary["skipped"] == []
    assert load_model(tmp_path / "new")[0] == CONFIG


def test_expected_failures_are_one_message_and_exit_code_2(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused("path-missing", tmp_path / "none"):
        convert.main([str(tmp_path / "none"), str(tmp_path / "x")])
    with refused("folder-occupied", source):
        convert.main([str(source), str(source)])
    assert run(["convert", str(tmp_path / "none"), str(tmp_path / "x")]) == 2
    check_refusal(capsys.readouterr().err, "path-missing", tmp_path / "none")
    with refused("option-value", "convert --help"):
        convert.main([str(source), str(tmp_path / "x"), "--to", "onnx"])
    assert not (tmp_path / "x").exists()


def test_help_names_every_option_and_loads_no_heavy_library() -> None:
    program = (
        "import sys; from bench.cli import convert\n"
        "try: convert.main(['--help'])\n"
        "except SystemExit as error: code = error.code\n"
        "heavy = {'torch', 'numpy', 'safetensors', 'transformers', 'tensorflow'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for option in ("SRC", "DST", "--to", "--config", "--vocab", "--allow-missing", "--json"):
        assert option in done.stdout
