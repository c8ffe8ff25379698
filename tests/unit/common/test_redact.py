"""Secrets of environments and commands go by their names, and nothing else does."""

import time

import pytest
from support.cli import ROOT

from common.redact import REDACTED, redact_environment, redact_text, without_secrets


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "MY_PASSWORD",
        "WANDB_API_KEY",
        "GITHUB_PAT",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AZURE_STORAGE_CONNECTION_STRING",
        "PROXY_AUTHORIZATION",
    ],
)
def test_variables_named_like_secrets_are_redacted(name: str) -> None:
    assert redact_environment({name: "value"}) == {name: REDACTED}
    assert redact_text(f"env {name}=hunter2 python x.py") == f"env {name}={REDACTED} python x.py"
    assert without_secrets({name: "value", "NCCL_DEBUG": "INFO"}) == {"NCCL_DEBUG": "INFO"}


def test_ordinary_variables_stay() -> None:
    plain = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "GPU-1234",
        # Names that hold a word of secrets and mean another.
        "TOKENIZERS_PARALLELISM": "false",
        "KMP_ALL_THREADPRIVATE": "4096",
        "GIT_AUTHOR_NAME": "Ada",
        "SLURM_JOB_NAME": "hf-compiled",
    }
    assert redact_environment(plain) == plain


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("https://user:hunter2@example.org/x", "hunter2"),
        ("https://hunter2@example.org/x", "hunter2"),
        ("postgresql://me:hun@ter2@host/x", "ter2"),
        ("run --api-key=hunter2 --epochs 3", "hunter2"),
        ("run --verbose --hf-token hunter2", "hunter2"),
        ("run --env HF_TOKEN=hunter2", "hunter2"),
        ("export HF_TOKEN='hun ter2'", "ter2"),
        ("--password 'hun ter2' --epochs 3", "ter2"),
        ("--auth hunter2", "hunter2"),
        ("AccountKey=hunter2==;EndpointSuffix=x", "hunter2"),
        ("https://a.blob.core.windows.net/c?sv=1&sig=hunter2%3D&se=2", "hunter2"),
    ],
)
def test_secrets_inside_commands_are_redacted(text: str, secret: str) -> None:
    redacted = redact_text(text)
    assert secret not in redacted and REDACTED in redacted
    assert redact_environment({"CUDA_X": text}) == {"CUDA_X": redacted}


@pytest.mark.parametrize(
    "text",
    [
        "real_tokens=4096 tokens: 12",
        "--tokenizer x --max-tokens 3 --author me",
        "https://example.org/a?b=c#d and me@example.org",
        "ssh://git@host/x",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact_text(text) == text


def test_commands_options_and_names_of_the_reference_stay() -> None:
    text = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert redact_text(text) == text


@pytest.mark.parametrize("part", ["a.b-", "--a-", "?a&b", "://a", "TOK", "a_token ", "@", "_key", '--token "'])
def test_no_text_takes_long_to_redact(part: str) -> None:
    began = time.process_time()
    redact_text(part * (200_000 // len(part)))
    assert time.process_time() - began < 5
