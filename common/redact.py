"""Keep secrets out of run directories and reports, and control characters off terminals."""

import re
from collections.abc import Mapping

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|credential|api_?key|access_?key|private|auth|cookie|session|signature|"
    r"\bsas\b|_sas\b|conn(ection)?_?str|webhook|_pat\b|_key\b|_pwd\b|_pass\b",
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
    rf"|(?:{_WORD}|sharedaccesssignature)[\"']?\s?[:=]\s?"
    r"|\bauthorization[\"']?\s?[:=]\s?(?:[\"']?\w{1,20} )?|\bbearer (?=[\w.~+/=-]{16})"
)
_SECRET_TEXT = re.compile(
    r"(?<=://)[^/\s?#\"'<>]{1,500}(?=@)"
    r"|\b(?:hf|gh[opsur]|github_pat|glpat|sk|xox[abp]|nvapi)[-_][A-Za-z0-9_-]{8,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\bey[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[\w-]+"
    rf"|(?P<kept>{_BEFORE})(?:\"[^\"]{{0,500}}\"|'[^']{{0,500}}'|[\"']?[^\s&;,\"']+)",
    re.IGNORECASE,
)


def redact_text(text: str) -> str:
    """Replace in `text`: credentials in URLs, well-known forms of tokens, values of names that speak of a secret."""
    return _SECRET_TEXT.sub(lambda match: (match["kept"] or "") + REDACTED, text)


def terminal_text(text: str) -> str:
    """Return a message for a terminal: without secrets, a blank for each character that the terminal would act on."""
    return "".join(one if one.isprintable() or one == "\n" else " " for one in redact_text(text))


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names and values hold no secret, for programs that record their environment."""
    return {name: value for name, value in variables.items() if redact_environment({name: value})[name] == value}


def redact_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Copy `variables`; values whose name speaks of a secret, or that hold one, are replaced."""
    return {
        name: REDACTED if _SECRET_NAME.search(name) else redact_text(value) for name, value in sorted(variables.items())
    }
