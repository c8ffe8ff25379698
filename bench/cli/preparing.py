"""Words of the commands that make data ready."""

from collections.abc import Sequence


def plain_words(argv: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Return the words without those that say the default, --lower-case and `others`: the parser knows only the form
    that changes it.
    """
    return [word for word in argv if word != "--lower-case" and word not in others]
