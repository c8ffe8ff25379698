"""Keep secrets out of run directories and reports, and control characters off terminals."""

import re
from collections.abc import Mapping
from functools import cache

REDACTED = "[redacted]"

# TOKENIZERS_PARALLELISM, KMP_ALL_THREADPRIVATE and GIT_AUTHOR_NAME are not secrets.
_SECRET_NAME = re.compile(
    r"token(?!iz)|secret|passw|passphrase|credential|api_?key|access_?key|(?<!thread)private|auth(?!or(?!i[sz]))|cookie|"
    r"session|signature|\bsas\b|_sas\b|conn(ection)?_?str|webhook|_pat\b|_key\b|_pwd\b|_pass\b",
    re.IGNORECASE,
)
_WORD = (
    r"passw(?:or)?d|passphrase|secret|credentials?|(?:api|access|account|private|shared)[-_]?key|"
    r"(?:access|auth|refresh|session|security)[-_]?token"
)
_PARTS = r"(?:[a-z0-9]+[-_.]){0,4}"
# What stands before a value; bounded, so that no text takes long.
_BEFORE = (
    rf"--{_PARTS}(?:token|auth|{_WORD})[= ]|[?&](?:sig|{_PARTS}(?:signature|token|key))=|(?-i:(?:TOKEN|API_?KEY|_KEY)=)"
    rf"|(?:{_WORD}|sharedaccesssignature)[\"']?\s?[:=]\s?|\bsig=(?=[\w/+%]{{40}})|\bwandb login (?=[0-9a-f]{{40}}\b)"
    r"|\bauthorization[\"']?\s?[:=]\s?(?:[\"']?\w{1,20} )?|\bbearer (?=[\w.~+/=-]{16})"
    r"|\bhooks\.slack\.com/(?:services|workflows|triggers)/(?=[\w/]{20})"
)


def _random(signs: str) -> str:
    """Return a look ahead for what random characters have and words joined by dashes have not, in the next 60 of them.

    That is both letter cases, or a digit beside a letter. Of 20 characters drawn from 62 all are small letters, all
    capitals, or all digits with 2 * (26/62)^20 + (10/62)^20 = 6e-8; 34 letters are of one case with 2^-33; 20
    hexadecimal digits are all letters or all numbers with (6/16)^20 + (10/16)^20 = 8e-5.
    """
    return rf"(?:(?={signs}{{0,60}}?[A-Z])(?={signs}{{0,60}}?[a-z])|(?={signs}{{0,60}}?(?:\d[A-Za-z]|[A-Za-z]\d)))"


_MIXED, _MIXED_SAFE = _random("[A-Za-z0-9]"), _random(r"[\w.-]")
# To its last line, or as far as the text has it, up to the next dashes. Its end may be missing: nothing is tried twice;
# possessive repetition of a group is wrong in Python before 3.11.5 (gh-106052).
_PEM = (
    r"(?-i:-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----)(?:[^-]|-(?!----)){0,20000}"
    r"(?-i:-----END [A-Z0-9 ]{0,40}-----)?"
)
# Tokens by their services' prefixes and lengths, in their letter case: a prefix alone begins names, too (hf-compiled).
_FORMS = (
    rf"(?:hf|api_org|npm)_{_MIXED}[A-Za-z0-9]{{30,}}"  # Hugging Face, npm
    r"|github_pat_[A-Za-z0-9_]{16,}"
    rf"|gl(?:pat|[dr]t|oas|ptt|cbt|ft|agent|soat|imt)-{_MIXED_SAFE}[\w.-]{{20,}}|GR1348941[\w-]{{20,}}"
    # OpenAI, Anthropic
    rf"|sk-(?:{_MIXED}[A-Za-z0-9]{{20,}}|(?:proj|svcacct|admin|None|ant-[a-z]{{3,6}}\d\d|or-v\d)-{_MIXED_SAFE}[\w-]{{20,}}"
    r"|[\w-]{1,80}?T3BlbkFJ[\w-]{10,})"
    r"|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|dapi[0-9a-f]{32}\b"  # Stripe, Databricks
    r"|AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|1//0[\w-]{30,}"  # Google
    # Both halves of an AWS key.
    r"|A[KS]IA[0-9A-Z]{16}\b(?:[\s,:;|/\"']{1,4}[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))?"
    rf"|xox[abeoprs]-(?:(?=[A-Za-z0-9.-]{{0,60}}?\d{{9}})|{_MIXED_SAFE})[A-Za-z0-9.-]{{10,}}"  # Slack
    r"|xapp-\d-[A-Za-z0-9-]{20,}"
    r"|wandb_v\d_\w{20,}|nvapi-[\w-]{40,}|pypi-A[\w-]{50,}|dckr_[op]at_[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{10,}\.[\w-]+"  # JSON web tokens
)


@cache
def _secret_text() -> re.Pattern[str]:
    """Return what finds a secret in a text; compiled when first needed, which takes 10 ms."""
    # Of an address with git@ everybody knows the name. GitHub's tokens are known behind letters, too: no name has such.
    return re.compile(
        rf"(?<=://)(?!git@)[^/\s?#\"'<>]{{1,500}}(?=@)|{_PEM}"
        rf"|(?-i:gh[opsur]_{_MIXED}[A-Za-z0-9]{{30,}})|(?<![A-Za-z0-9])(?-i:{_FORMS})"
        rf"|(?P<kept>{_BEFORE})(?:[\"']?{_PEM}|\"[^\"]{{0,500}}\"|'[^']{{0,500}}'|[\"']?[^\s&;,\"']+)",
        re.IGNORECASE,
    )


def redact_text(text: str) -> str:
    """Replace in `text`: credentials in URLs, well-known forms of tokens, values of names that suggest a secret."""
    return _secret_text().sub(lambda match: (match["kept"] or "") + REDACTED, text)


def terminal_text(text: str) -> str:
    """Return a message for a terminal: without secrets, a space for each character that the terminal would act on."""
    return "".join(one if one.isprintable() or one == "\n" else " " for one in redact_text(text))


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names and values hold no secret, for programs that record their environment."""
    return {name: value for name, value in variables.items() if redact_environment({name: value})[name] == value}


def redact_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Copy `variables`; values whose name suggests a secret, or that hold one, are replaced."""
    return {
        name: REDACTED if _SECRET_NAME.search(name) else redact_text(value) for name, value in sorted(variables.items())
    }
