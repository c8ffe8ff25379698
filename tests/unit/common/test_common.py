"""Atomic writes, redaction, registries."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from common.atomic import atomic_path, check_writable, remove_left_overs, write_json, write_text
from common.errors import StorageError, UsageError
from common.locks import LOCK_FILE, locked
from common.redact import REDACTED, redact_environment, redact_text, terminal_text
from common.registry import load, lookup


def test_a_failed_write_keeps_the_old_content_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    write_text(target, "old")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_killed_processes_left_half_written_is_removed_and_nothing_else(tmp_path: Path) -> None:
    process = os.fork()
    if not process:
        with atomic_path(tmp_path / "result.json"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    others = [".result.json", "mine.tmp", ".note.tmp", ".a.tmp.bak"]
    for name in others:
        (tmp_path / name).touch()
    assert len(list(tmp_path.iterdir())) == len(others) + 1
    remove_left_overs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
    remove_left_overs(tmp_path / "absent")


def test_json_refuses_nan_before_touching_the_file(tmp_path: Path) -> None:
    target = tmp_path / "file.json"
    write_json(target, {"a": 1})
    with pytest.raises(ValueError, match="Out of range"):
        write_json(target, {"a": float("nan")})
    assert json.loads(target.read_text()) == {"a": 1}


def test_a_path_through_a_file_says_which_path_and_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is a file, not a folder"):
        write_text(tmp_path / "file" / "below", "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_a_storage_error_and_the_old_content_stays(tmp_path: Path) -> None:
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    try:
        write_text(tmp_path / "kept", "old")
        with pytest.raises(StorageError, match="disk is full"):
            write_text(tmp_path / "kept", "x" * 200_000)
        assert (tmp_path / "kept").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_folder_is_tried_before_something_is_made_for_it_and_left_as_it_was(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    check_writable(tmp_path / "mine")
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"] and list((tmp_path / "mine").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a part of that path is a file"):
        check_writable(tmp_path / "file" / "folder" / "inner")
    with pytest.raises(StorageError, match="cannot write /proc/bertbench"):
        check_writable(Path("/proc/bertbench"))


def test_a_lock_does_not_write_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_FILE).symlink_to(tmp_path / "mine")
    with pytest.raises(StorageError, match="a link at that path"), locked(tmp_path / "run", "another test", "wait"):
        pytest.fail("the lock was taken")
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_file_written_over_a_link_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "result.json").symlink_to(tmp_path / "mine")
    write_text(tmp_path / "result.json", "x")
    assert (tmp_path / "mine").read_text() == "precious" and not (tmp_path / "result.json").is_symlink()


def test_a_lock_on_a_full_disk_is_a_storage_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open
    monkeypatch.setattr(os, "open", lambda path, *how: really("/dev/full", os.O_RDWR) if how else really(path))
    with pytest.raises(StorageError, match="disk is full"), locked(tmp_path, "another test", "wait"):
        pytest.fail("the lock was taken")


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "MY_PASSWORD",
        "WANDB_API_KEY",
        "GITHUB_PAT",
        "AZURE_STORAGE_CONNECTION_STRING",
    ],
)
def test_variables_named_like_secrets_are_redacted(name: str) -> None:
    assert redact_environment({name: "value"}) == {name: REDACTED}


def test_ordinary_variables_stay() -> None:
    plain = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "GPU-1234"}
    assert redact_environment(plain) == plain


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("https://user:hunter2@example.org/x", "hunter2"),
        ("token hf_abcdefghijklmnop used", "hf_abcdefghijklmnop"),
        ("run --api-key=abc123 --epochs 3", "abc123"),
        ("AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
        ("https://hunter2@example.org/x", "hunter2"),
        ("redis://:hunter2@host/0", "hunter2"),
        ("postgresql://me:hun@ter2@host/x", "ter2"),
        ("https://a.blob.core.windows.net/c?sv=1&sig=hunter2%3D&se=2", "hunter2"),
        ("https://s3/x?X-Amz-Signature=hunter2", "hunter2"),
        ("Authorization: Bearer hunter2", "hunter2"),
        ("--header 'authorization: token hunter2'", "hunter2"),
        ("curl -H 'X-Api-Key: hunter2'", "hunter2"),
        ("WANDB_API_KEY=hunter2 python x", "hunter2"),
        ("export HF_TOKEN='hun ter2'", "ter2"),
        ("--password 'hun ter2' --epochs 3", "ter2"),
        ("--passwd=hunter2", "hunter2"),
        ("--auth hunter2", "hunter2"),
        ('{"password": "hun, ter2"}', "ter2"),
        ("DefaultEndpointsProtocol=https;AccountKey=hunter2==;EndpointSuffix=x", "hunter2"),
        ("github_pat_11AAAAAAA0hunter2", "hunter2"),
    ],
)
def test_secrets_inside_text_are_redacted(text: str, secret: str) -> None:
    redacted = redact_text(text)
    assert secret not in redacted and REDACTED in redacted


@pytest.mark.parametrize(
    "text",
    [
        "unk_token=[UNK] real_tokens=4096 tokens: 12",
        "--tokenizer x --max-tokens 3",
        "https://example.org/a?b=c#d and me@example.org",
        "bearer of news, the authorization of secrets",
        "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float> >",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("part", ["a.b-", "--a-", "?a&b", "://a", 'password: "', "ey", "TOK", "a_token ", "sk-", "@"])
def test_no_text_takes_long_to_redact(part: str) -> None:
    began = time.process_time()
    redact_text(part * (200_000 // len(part)))
    assert time.process_time() - began < 5


def test_a_message_for_a_terminal_holds_no_secret_and_nothing_that_acts_on_it() -> None:
    assert terminal_text("a\x1b[2J\x07\u202eb\nc --token=hush\r") == f"a [2J  b\nc --token={REDACTED} "


def test_an_unknown_name_lists_the_choices_and_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown preset 'bas'.*base, large.*did you mean 'base'"):
        lookup({"base": 1, "large": 2}, "bas", "preset")


def test_load_imports_what_the_registry_names() -> None:
    assert load({"path": "pathlib:Path"}, "path", "class") is Path
