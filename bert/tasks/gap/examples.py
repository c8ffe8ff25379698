"""What a row of GAP says: a text, a pronoun, two names, and which of them the pronoun means.

Source: Webster et al. 2018, arXiv 1810.05201, and the TSVs of google-research-datasets/gap-coreference.
"""

from dataclasses import dataclass

COLUMNS = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "B", "B-offset")
"""Columns that a file needs; others, such as URL, are not looked at."""
LABEL_COLUMNS = ("A-coref", "B-coref")
"""Columns that a file to train on or to score needs, and one to predict does not."""
LABELS = ("neither", "A", "B")
"""What a pronoun can mean, in the order of the classes 0, 1, 2."""
MASCULINE, FEMININE = "masculine", "feminine"
GENDERS = {**dict.fromkeys(("he", "his", "him"), MASCULINE), **dict.fromkeys(("she", "her", "hers"), FEMININE)}
"""Gender of each pronoun, in lower case, as the official scorer has them."""


@dataclass(frozen=True, slots=True)
class Mention:
    """Characters of a text that name somebody."""

    text: str
    """As it stands there."""
    offset: int

    @property
    def end(self) -> int:
        """Return the number of characters up to its end."""
        return self.offset + len(self.text)


@dataclass(frozen=True, slots=True)
class GapExample:
    """One row."""

    line: int
    """Its line in the file, from 1."""
    id: str
    text: str
    pronoun: Mention
    a: Mention
    b: Mention
    a_coref: bool | None = None
    """Whether the pronoun means A; None where the row does not say."""
    b_coref: bool | None = None
    """Whether the pronoun means B, likewise."""

    @property
    def mentions(self) -> tuple[Mention, Mention, Mention]:
        """Return pronoun, A and B."""
        return self.pronoun, self.a, self.b

    @property
    def gender(self) -> str | None:
        """Return the gender of the pronoun; None of one that GAP does not have."""
        return GENDERS.get(self.pronoun.text.lower())

    @property
    def label(self) -> int | None:
        """Return the class, an index of LABELS; None where the row does not say, or says both names."""
        if self.a_coref is None or self.b_coref is None or (self.a_coref and self.b_coref):
            return None
        return 1 if self.a_coref else 2 if self.b_coref else 0

    @property
    def place(self) -> str:
        """Return the row in words."""
        return f"line {self.line} ({self.id[:60]})"
