"""Secrets go, and nothing else does: tokens of the forms that services document, and every name that the suite uses."""

import ast
import random
import string
import time

import pytest
from support.cli import ROOT

from bench.implementations import IMPLEMENTATIONS
from bert.parallel import STRATEGIES
from common.redact import REDACTED, redact_environment, redact_text, terminal_text
from records.trial import Trial

_LETTERS = string.ascii_letters + string.digits
_URL_SAFE = _LETTERS + "-_"
_BASE64 = _LETTERS + "+/"
_HEX = "0123456789abcdef"
_UPPER = string.ascii_uppercase + string.digits

# What precedes the secret part, its alphabet, its length, what follows: as the services or their scanners document
# them. Put together here, so that no scanner takes this file for a leak.
_FORMS = {
    "github-classic": ("ghp" + "_", _LETTERS, 36, ""),
    "github-app": ("ghs" + "_", _LETTERS, 36, ""),
    "github-fine-grained": ("github" + "_pat_" + "1" * 22 + "_", _LETTERS, 59, ""),
    "gitlab": ("glpat" + "-", _URL_SAFE, 20, ""),
    "gitlab-routable": ("glpat" + "-", _URL_SAFE, 27, ".01.0a1b2c3d4"),
    "gitlab-feed": ("glft" + "-", _URL_SAFE, 20, ""),
    "gitlab-agent": ("glagent" + "-", _URL_SAFE, 50, ""),
    "gitlab-scim": ("glsoat" + "-", _URL_SAFE, 20, ""),
    "gitlab-mail": ("glimt" + "-", _URL_SAFE, 25, ""),
    "gitlab-runner-registration": ("GR13" + "48941", _URL_SAFE, 20, ""),
    "gitlab-oauth": ("gloas" + "-", _HEX, 64, ""),
    "openai-named": ("sk" + "-myname-" + "a1" * 10 + "T3Blbk" + "FJ", _LETTERS, 20, ""),
    "google-refresh": ("1/" + "/0", _URL_SAFE, 60, ""),
    "hugging-face": ("hf" + "_", string.ascii_letters, 34, ""),
    "openai": ("sk" + "-", _LETTERS, 48, ""),
    "openai-project": ("sk" + "-proj-", _URL_SAFE, 124, ""),
    "openai-service": ("sk" + "-svcacct-", _URL_SAFE, 124, ""),
    "anthropic": ("sk" + "-ant-api03-", _URL_SAFE, 93, "AA"),
    "aws-key-id": ("AK" + "IA", _UPPER, 16, ""),
    "aws-session-key-id": ("AS" + "IA", _UPPER, 16, ""),
    "google": ("AI" + "za", _URL_SAFE, 35, ""),
    "slack-bot": ("xox" + "b-123456789012-1234567890123-", _LETTERS, 24, ""),
    "nvidia": ("nv" + "api-", _URL_SAFE, 64, ""),
    "pypi": ("py" + "pi-AgEIcHlwaS5vcmc", _URL_SAFE, 150, ""),
    "npm": ("np" + "m_", _LETTERS, 36, ""),
    "docker": ("dckr" + "_pat_", _URL_SAFE, 27, ""),
}
# Those of no form of their own: known by what stands before them, which stays.
_NAMED = {
    "aws-secret": ("AWS_SECRET_ACCESS_KEY=", _BASE64, 40),
    "aws-credentials-file": ("aws_secret_access_key = ", _BASE64, 40),
    "wandb": ("WANDB_API_KEY=", _HEX, 40),
    "wandb-login": ("wandb login ", _HEX, 40),
    "wandb-yaml": ("wandb_api_key: ", _HEX, 40),
    "azure-sas": ("https://x.blob.core.windows.net/c?sv=2024-11-04&sp=r&sig=", _BASE64, 43),
    "azure-sas-alone": ("SharedAccessSignature sr=x;sig=", _BASE64, 43),
}
_FOLDERS = """
    hf-baseline hf_baseline hf-compiled-bf16 hf-trainer-ddp-2-bf16 sk-learn-baseline sk-learning-rate-sweep task-squad
    runs/hf-compiled/trials gho-st ghp-run glpat-x
    npm_packages_of_the_first_experiment pypi-mirror-of-the-cluster nvapi-test
    nvapi-bindings-of-the-driver xoxb-run xoxo-and-other-letters AKIA-run AIza-run docker_pat dapi-run
    hf_bert_base_uncased_finetuned_squad_v2 sk-bert-large-uncased-whole-word-masking-finetuned-squad
    hf_transformersbaselinecomparisonofall npm_throughputmeasurementsofeverybatchsize
    sk-bertlargeuncasedwholewordmasking sk-proj-experiments-with-many-gpus-2026 sk-admin-experiments-on-the-cluster
    glpat-experiments-with-labels-and-more xoxb-sweep-batch-sizes-2026 ssh://git@host/x
    eye-tracking-dataset.version-two-of-it.final wandb_v1_run ddp-2 bench-text trial-0001-of-hf-compiled
    2026-11-23_12-00-00_hf-compiled_bf16_seq128 0123456789abcdef0123456789abcdef01234567
"""


def _drawn(alphabet: str, length: int, seed: str) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=length))


def _registry_names() -> dict[str, list[str]]:
    """The keys of every table in capitals that a module of the suite has, by file."""
    found: dict[str, list[str]] = {}
    for package in ("analysis", "bench", "bert", "common", "records"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
                value = getattr(node, "value", None)
                if isinstance(target, ast.Name) and target.id.isupper() and isinstance(value, ast.Dict):
                    keys = [key.value for key in value.keys if isinstance(key, ast.Constant)]
                    found.setdefault(path.relative_to(ROOT).as_posix(), []).extend(k for k in keys if type(k) is str)
    return found


@pytest.mark.parametrize("around", ["{}", "token {} used", '{{"key": "{}"}}', "/home/{}/x.json", "x={}, y"])
@pytest.mark.parametrize("name", _FORMS)
def test_tokens_in_the_forms_of_their_services_are_redacted_whole(name: str, around: str) -> None:
    prefix, alphabet, length, suffix = _FORMS[name]
    for seed in range(20):
        # A last character that is no sign: prose may put one behind a token.
        token = prefix + _drawn(alphabet, length - 1, f"{name}{seed}") + "x" * (alphabet != _UPPER) + suffix
        token += "7" * (alphabet == _UPPER)
        assert redact_text(around.format(token)) == around.format(REDACTED)


@pytest.mark.parametrize("name", ["github-classic", "hugging-face", "gitlab", "openai-project", "google"])
def test_an_underscore_before_a_token_protects_nothing(name: str) -> None:
    prefix, alphabet, length, suffix = _FORMS[name]
    for seed in range(20):
        token = prefix + _drawn(alphabet, length - 1, f"{name}{seed}") + "x" + suffix
        assert redact_text(f"key_{token}/x.csv") == f"key_{REDACTED}/x.csv"


def test_a_token_of_github_is_known_behind_letters() -> None:
    assert redact_text("TOKEN" + "ghp" + "_" + _drawn(_LETTERS, 36, "a")) == "TOKEN" + REDACTED


@pytest.mark.parametrize("kind", ["services", "workflows", "triggers"])
def test_addresses_that_post_to_slack_are_redacted(kind: str) -> None:
    path = "T0123ABCD/A0123ABCD/" + _drawn(_LETTERS, 24, kind)
    assert (
        redact_text(f"https://hooks.slack.com/{kind}/{path} said") == f"https://hooks.slack.com/{kind}/{REDACTED} said"
    )


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\\n"])
def test_a_private_key_is_redacted_over_all_its_lines(kind: str, line_end: str) -> None:
    lines = [_drawn(_BASE64, 64, f"{kind}{number}") for number in range(26)]
    begin, end = (f"-----{word} {kind}" + "PRIVATE KEY-----" for word in ("BEGIN", "END"))
    whole = line_end.join([begin, "Proc-Type: 4,ENCRYPTED", *lines, end])
    assert redact_text(f"read {whole} and more") == f"read {REDACTED} and more"
    cut = redact_text(f'"private_key": "{whole[:800]}')
    assert not any(line in cut for line in lines) and "private_key" in cut
    assert redact_text("-----BEGIN CERTIFICATE-----") == "-----BEGIN CERTIFICATE-----"


@pytest.mark.parametrize("name", _NAMED)
def test_secrets_without_a_form_are_known_by_what_stands_before_them(name: str) -> None:
    before, alphabet, length = _NAMED[name]
    for seed in range(20):
        secret = _drawn(alphabet, length, f"{name}{seed}")
        assert redact_text(f"{before}{secret} and more") == f"{before}{REDACTED} and more"
        quoted = secret.replace("+", "%2B").replace("/", "%2F")
        assert redact_text(f"{before}{quoted}") == before + REDACTED


def test_the_secret_half_goes_with_the_public_half_of_an_aws_key() -> None:
    both = ("AK" + "IA" + _drawn(_UPPER, 16, "id"), _drawn(_BASE64, 40, "secret"))
    for between in (" ", ",", ":", "', '"):
        assert redact_text(f"keys {between.join(both)}\n") == f"keys {REDACTED}\n"


def test_names_of_every_registry_stay() -> None:
    found = _registry_names()
    names = [name for keys in found.values() for name in keys]
    # The walk finds them: one of each registry.
    for name in (
        "squad",
        "distilbert",
        "fsdp",
        "hf-compiled",
        "nsys",
        "bf16-weights",
        "huge-pages",
        "azureml",
        "mlflow",
    ):
        assert name in names
    assert {"nvidia-smi", "nccl-tests"} <= set(names) and len(found) > 30
    assert {name: redact_text(name) for name in names if redact_text(name) != name} == {}
    sentence = f"fastest: {', '.join(names)}."
    assert redact_text(sentence) == sentence


def test_commands_options_and_names_of_the_reference_stay() -> None:
    text = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert "hf-compiled" in text and redact_text(text) == text


@pytest.mark.parametrize("name", _FOLDERS.split())
def test_names_of_folders_and_runs_stay(name: str) -> None:
    for text in (name, f"/data/runs/{name}/report/report.html", f"wrote {name}: 3 trials", f"--out={name} --epochs 3"):
        assert redact_text(text) == text
    assert redact_environment({"CUDA_CACHE_PATH": name}) == {"CUDA_CACHE_PATH": name}


def test_ids_of_trials_stay() -> None:
    for implementation in IMPLEMENTATIONS:
        for strategy in STRATEGIES:
            for seed in range(20):
                name = Trial(implementation=implementation, strategy=strategy, seed=seed).trial_id
                assert redact_text(name) == name and implementation in name


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "MY_PASSWORD",
        "WANDB_API_KEY",
        "GITHUB_PAT",
        "AZURE_STORAGE_CONNECTION_STRING",
        "PROXY_AUTHORIZATION",
    ],
)
def test_variables_named_like_secrets_are_redacted(name: str) -> None:
    assert redact_environment({name: "value"}) == {name: REDACTED}


def test_ordinary_variables_stay() -> None:
    plain = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "GPU-1234",
        # Names that hold a word of secrets and mean another.
        "TOKENIZERS_PARALLELISM": "false",
        "KMP_ALL_THREADPRIVATE": "4096",
        "GIT_AUTHOR_NAME": "Ada",
        # Values that begin as tokens do.
        "SLURM_JOB_NAME": "hf-compiled",
        "TORCH_HOME": "/data/sk-learn/hf_bert_large_uncased_whole_word_masking_finetuned",
    }
    assert redact_environment(plain) == plain


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("https://user:hunter2@example.org/x", "hunter2"),
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


_PARTS = ["a.b-", "--a-", "?a&b", "://a", 'password: "', "ey", "TOK", "a_token ", "sk-", "@", "glpat-", "hf_", "gho_a"]
_PARTS += ["-----BEGIN " + "PRIVATE KEY-----", "xoxb-a", "1//0", "sk-a-T3Blbk"]


@pytest.mark.parametrize("part", _PARTS)
def test_no_text_takes_long_to_redact(part: str) -> None:
    began = time.process_time()
    redact_text(part * (200_000 // len(part)))
    assert time.process_time() - began < 5


def test_a_message_for_a_terminal_holds_no_secret_and_nothing_that_acts_on_it() -> None:
    assert terminal_text("a\x1b[2J\x07\u202eb\nc --token=hush\r") == f"a [2J  b\nc --token={REDACTED} "
