"""The NVTX ranges that `ncu --nvtx` writes beside each kernel."""

import re
from functools import lru_cache

PUSH_POP, START_STOP = "Push/Pop_Range", "Start/Stop_Range"
"""What the names of the two columns hold, "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
and "Id:Domain:Start/Stop_Range:..."."""
_AFTER_NAME = 6  # PL_Type, PL_Value, CLR_Type, Color, Msg_Type, Msg


@lru_cache(maxsize=65536)
def ranges_of(cell: str) -> tuple[str, ...]:
    """Return the ranges of a cell as "domain@name" (ncu's own way to write them), outermost first.

    A cell holds a thread or range number and, in quotes, each range as the column's name says. A name may hold colons.
    """
    quoted = re.findall(r'"([^"]*)"', cell)
    if not quoted:
        plain = re.sub(r"^\s*\d+\s+", "", cell).strip()
        quoted = [plain] if ":" in plain else []
    return tuple(found for found in map(_range, quoted) if found)


def _range(text: str) -> str | None:
    fields = text.split(":")
    if fields[0].isdigit() and len(fields) > 2 + _AFTER_NAME:
        fields = fields[1:]  # the number of a start/stop range
    domain, rest = fields[0], fields[1:]
    # The message may repeat the name, colons and all.
    length, odd = divmod(len(rest) - (_AFTER_NAME - 1), 2)
    if length > 0 and not odd and rest[:length] == rest[-length:]:
        name = ":".join(rest[:length])
    elif len(rest) > _AFTER_NAME:
        name = ":".join(rest[:-_AFTER_NAME])
        if name in ("", "none"):
            name = rest[-1]
    else:
        name = ":".join(rest)
    return f"{domain}@{name}" if name else None
