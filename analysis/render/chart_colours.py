"""Colors of charts in a page: each role of `figure.COLOURS` on the page's light and dark paper, as CSS variables."""

from collections.abc import Mapping

COLOURS: Mapping[str, tuple[str, str]] = {
    "blue": ("#0072b2", "#4aa3e0"),
    "vermilion": ("#d55e00", "#f0793a"),
    "green": ("#009e73", "#2fbf95"),
    "orange": ("#b97900", "#f0b03a"),
    "purple": ("#8c6bb1", "#b094d6"),
    "sky": ("#3690c8", "#8fd0f5"),
    "pink": ("#c2649a", "#e59ac4"),
    "brown": ("#7a5200", "#c4964a"),
    "yellow": ("#a08a00", "#f5dc5a"),
    "wine": ("#882255", "#d46a98"),
    "grey": ("#757575", "#a3a3a3"),
    "pale": ("#5f6b78", "#c3cad3"),
    "hidden": ("#cd7d40", "#f5b68a"),
    "idle": ("#8b95a1", "#768391"),
    "faint": ("#8b95a1", "#768391"),
    "line": ("#7b8794", "#8996a3"),
}
"""Role of a series -> color on light and on dark paper, at least 3:1 on it (WCAG 2.2, 1.4.11)."""
BACKGROUNDS: Mapping[str, tuple[str, str]] = {
    "warmup": ("#f7e6cb", "#3a3020"),
    "matrix": ("#56b4e9", "#005a8c"),
}
"""What lies behind series or words; "matrix" is a full cell."""
_TEXT = {"ink": "var(--ink)", "note": "var(--soft)", "paper": "var(--paper)", "stripe": "var(--page)"}


def css_colour(role: str) -> str:
    """Return the CSS value of a role of `figure.COLOURS`, which follows the page's scheme."""
    return _TEXT.get(role) or f"var(--c-{role})"


def css_ink(role: str) -> str:
    """Return the CSS value of words on a surface of that role."""
    return "var(--paper)" if role in ("ink", "note") else f"var(--on-{role})" if role in COLOURS else "var(--ink)"


def variables() -> str:
    """Return the CSS that declares the variables for both schemes."""
    light, dark = (
        "".join(
            f"--c-{role}:{pair[scheme]};" + (f"--on-{role}:{ink_on(pair[scheme])};" if role in COLOURS else "")
            for role, pair in {**COLOURS, **BACKGROUNDS}.items()
        )
        for scheme in (0, 1)
    )
    return f":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def ink_on(colour: str) -> str:
    """Return black or white, whichever has more contrast to a color; one of them has at least 4.58:1."""
    return max(("#ffffff", "#000000"), key=lambda ink: contrast(ink, colour))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors, 1 to 21 (WCAG 2.2: "relative luminance", "contrast ratio")."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
