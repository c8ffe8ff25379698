"""Manifests as YAML that every reader takes alike."""

import re
from collections.abc import Sequence
from typing import Any

# Plain where no version of YAML takes it for anything but text; 1e-5, 012, 1:30, yes and ~ are quoted.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*")
_NOT_TEXT = {"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"}


def to_yaml(documents: Sequence[dict[str, Any]], header: str) -> str:
    """Return documents of plain values as YAML below a comment."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')

    Dumper.add_representer(str, represent)
    text: str = yaml.dump_all(
        documents, Dumper=Dumper, sort_keys=False, default_flow_style=False, width=10**6, allow_unicode=True
    )
    return f"# {header}\n{text}"
