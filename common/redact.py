"""Keep secrets out of run directories and reports."""

import re
from collections.abc import Mapping

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|credential|api_?key|access_?key|private|auth|cookie|session|signature|"
    r"\bsas\b|_sas\b|conn(ection)?_?str|webhook|_pat\b|_key\b",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(
    r"(?P<url>(?<=://)[^/\s:@]+:[^/\s@]+(?=@))"
    r"|(?P<known>\b(?:hf|ghp|gho|ghs|glpat|sk|xox[abp]|nvapi)[-_][A-Za-z0-9_-]{8,}|\bAKIA[0-9A-Z]{16}\b|\bey[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[\w-]+)"
    r"|(?P<option>(?<=--)(?:[\w-]*(?:token|password|secret|api-key))[= ]\S+)",
    re.IGNORECASE,
)


def redact_text(text: str) -> str:
    """Replace credentials inside URLs, well-known token forms and secret options in `text`."""

    def replace(match: re.Match[str]) -> str:
        option = match.group("option")
        return f"{re.split('[= ]', option, maxsplit=1)[0]}={REDACTED}" if option else REDACTED

    return _SECRET_TEXT.sub(replace, text)


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names and values hold no secret, for programs that record their environment."""
    return {name: value for name, value in variables.items() if redact_environment({name: value})[name] == value}


def redact_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Copy `variables`; values whose name speaks of a secret, or that hold one, are replaced."""
    return {
        name: REDACTED if _SECRET_NAME.search(name) else redact_text(value) for name, value in sorted(variables.items())
    }
