"""A folder is there whole or not at all, whenever its conversion ends."""

import signal
import subprocess
import sys
from pathlib import Path

from support.bert_folders import loaded, saved, theirs

from bert.checkpoints.conversion import convert

ROOT = Path(__file__).resolve().parents[3]
# A conversion that stands still with half its folder written.
HALTED = """
import sys, time
from pathlib import Path
from bert.checkpoints.files import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "model.safetensors").write_bytes(b"half")
    print(folder.name, flush=True)
    time.sleep(600)
"""


def halted(destination: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HALTED, str(destination)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, destination.parent / process.stdout.readline().strip()


def test_a_killed_conversion_leaves_no_destination_and_does_not_hinder_the_next(tmp_path: Path) -> None:
    source = saved(tmp_path / "src", theirs("BertModel"))
    ended, left = halted(tmp_path / "dst")
    running, written = halted(tmp_path / "dst")
    try:
        ended.send_signal(signal.SIGKILL)
        ended.wait()
        assert left != written and not (tmp_path / "dst").exists()
        convert(source, tmp_path / "dst")
        assert (written / "model.safetensors").read_bytes() == b"half"
        loaded(tmp_path / "dst")
    finally:
        for process in (ended, running):
            process.kill()
            process.communicate()
