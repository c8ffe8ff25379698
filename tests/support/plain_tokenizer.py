"""BERT's tokenizer in plain Python, one character at a time: what the fast encoder is held against.

Written from the description of google-research/bert's tokenization.py: control characters out, white space to blanks,
CJK characters apart, lower case and accents off, punctuation apart, then the longest piece first. Nothing is shared
with the project or with the tokenizers library.
"""

import unicodedata

LONGEST_WORD = 100
_CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class PlainTokenizer:
    """Text to ids."""

    def __init__(self, pieces: list[str], lower_case: bool) -> None:
        self.ids = {piece: number for number, piece in enumerate(pieces)}
        self.lower_case = lower_case

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in self.words(text):
            ids.extend(self.pieces_of(word))
        return ids

    def words(self, text: str) -> list[str]:
        """Return the words and signs of a text."""
        cleaned = []
        for character in text:
            code = ord(character)
            if code in (0, 0xFFFD) or _is_control(character):
                continue
            if _is_blank(character):
                cleaned.append(" ")
            elif any(low <= code <= high for low, high in _CJK):
                cleaned.extend((" ", character, " "))
            else:
                cleaned.append(character)
        found = []
        for word in "".join(cleaned).split():
            if self.lower_case:
                word = word.lower()
                word = "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")
            found.extend(_split_signs(word))
        return found

    def pieces_of(self, word: str) -> list[int]:
        """Return the ids of one word, the longest piece first."""
        if len(word) > LONGEST_WORD:
            return [self.ids["[UNK]"]]
        found = []
        start = 0
        while start < len(word):
            end = len(word)
            while start < end:
                piece = word[start:end] if start == 0 else "##" + word[start:end]
                if piece in self.ids:
                    found.append(self.ids[piece])
                    break
                end -= 1
            if start == end:
                return [self.ids["[UNK]"]]
            start = end
        return found


def _split_signs(word: str) -> list[str]:
    parts: list[str] = []
    begins_new = True
    for character in word:
        if _is_punctuation(character):
            parts.append(character)
            begins_new = True
        elif begins_new:
            parts.append(character)
            begins_new = False
        else:
            parts[-1] += character
    return parts


def _is_blank(character: str) -> bool:
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


def _is_control(character: str) -> bool:
    return character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf")


def _is_punctuation(character: str) -> bool:
    code = ord(character)
    ascii_sign = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return ascii_sign or unicodedata.category(character).startswith("P")
