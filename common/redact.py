"""Keep secrets out of recorded environments and commands: values by the name before them, credentials of URLs."""

import re
from collections.abc import Mapping

REDACTED = "[redacted]"

# TOKENIZERS_PARALLELISM, --max-tokens and GIT_AUTHOR_NAME are not secrets.
_WORDS = (
    r"token(?![a-z])|secret|passw|passphrase|credential|(?:api|access|account|private)[-_]?key|"
    r"(?:\b|[-_])(?:key|pat|pwd|pass|sas|sig)\b|auth(?!or(?!i[sz]))|cookie|signature|conn(?:ection)?[-_]?str"
)
_SECRET_NAME = re.compile(_WORDS, re.IGNORECASE)
_SETTING = re.compile(
    rf"(?P<name>--[\w-]{{0,40}}(?:{_WORDS})[\w-]{{0,40}}[= ]|\b\w{{0,40}}(?:{_WORDS})\w{{0,40}}=)"
    r"(?:\"[^\"]*\"|'[^']*'|[^\s&;,\"']+)",
    re.IGNORECASE,
)
_URL_CREDENTIALS = re.compile(r"(?<=://)(?!git@)[^/\s?#\"'<>]{1,500}(?=@)")


def redact_text(text: str) -> str:
    """Replace credentials of URLs, and values of options and variables that are named like secrets."""
    return _SETTING.sub(rf"\g<name>{REDACTED}", _URL_CREDENTIALS.sub(REDACTED, text))


def redact_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Copy `variables`; values whose name suggests a secret, or that hold one, are replaced."""
    return {
        name: REDACTED if _SECRET_NAME.search(name) else redact_text(value) for name, value in sorted(variables.items())
    }


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names and values hold no secret, for programs that record their environment."""
    shown = redact_environment(variables)
    return {name: value for name, value in variables.items() if shown[name] == value}
