"""Stops that end no sentence: abbreviations and ordinals of languages in Latin script, for every splitter.

The languages stand together, because a corpus seldom says which one a text is in; so what is a word of some language
at the end of its sentences ("art.", "max.", "me.") is left out, or counts before a number alone. Abbreviations that end
sentences as often as not (usw., etc., ecc., enz., J.-C.) end one unless a small letter follows.
"""

import re

# Something always follows: titles, "for example", "compare", "number". A capital at the front is known as well.
_INNER = """
    dr dra drs prof profa sr sra srs sras srta sres
    bzw bspw vgl nr nrn hr hrn hrsg dipl ggf ggfs evtl inkl exkl einschl insb insbes sog zzgl geb gest gegr verh ehem
    kgl frhr pfr bd bde mio mrd tsd abb z.b d.h d.i i.d.r z.t u.u v.a o.g
    mme mmes mlle mlles mgr vve ste boul cf cfr p.ex c.-à-d
    dña gral cnel lic excmo exmo exma p.ej
    sig sigg sig.ra sig.na dott dott.ssa prof.ssa avv p.es
    dhr mevr mw bijv zgn resp d.w.z m.a.w i.p.v t.a.v
    piem akad inž ģen sv t.i
    np tzn tzw tj ul św ks m.in inż płk ppłk kpt
    např tzv mj judr mudr rndr phdr nám
    f.eks bl.a t.ex dvs d.v.s s.k jfr jf
    npr pvz šv esim örn bkz doç yrd szt sf mt
"""
# They stand before a number, Arabic or Roman, and are words elsewhere.
_BEFORE_NUMBERS = """
    art arts artt kap abs ziff str anm pag pagg pág págs núm núms cap fig vol chap sec séc sek lib tab taf env ca c kl
    blz plkst dz mir br č č.p tel nº n.º aprox approx p pp s
"""
# They end a sentence unless a small letter follows.
_OPEN = """
    usw etc ecc enz jh jhd jhdt chr j.-c j.c a.c d.c ud uds vd vds uu u.ä o.ä u.a aufl e.d e.a o.a v.chr n.chr
    g gg gs u.c c utt lpp tml st r w itd itp atd apod aj osv mfl m.fl m.m jne ym yms jt kt vb god av apr éd coll cie
    m.ē p.m.ē kr n.l př
"""
# What follows an ordinal with a capital letter; where it has a small one (3. oktober) no word has to be known.
_BEHIND_ORDINALS = """
    Januar Jänner Februar Feber März April Mai Juni Juli August September Oktober November Dezember
    Jahrhundert Jahrhunderts Jahrtausend Jahrtausends Jh Weltkrieg Weltkriegs Weltkrieges
"""


def _with_capitals(text: str) -> frozenset[str]:
    words = text.split()
    return frozenset([*words, *(word[:1].upper() + word[1:] for word in words)])


_FIRST_HALVES = frozenset([*"abcdefghijklmnopqrstuvwxyz", "av", "apr", "pr"])
_ALWAYS = _with_capitals(_INNER) | {"MM", "EE"}
_NUMBERED = _with_capitals(_BEFORE_NUMBERS)
_OPEN_ENDS = _with_capitals(_OPEN)
_YEARS = map(str, range(2200))
DOUBTFUL_ENDS = frozenset(
    f"{opener}{word}.".encode()
    for word in {*_ALWAYS, *_NUMBERED, *_OPEN_ENDS, *_FIRST_HALVES, *_YEARS}
    for opener in ("", "(")
)
"""Every abbreviation and ordinal in UTF-8 with its stop, for a quick look at the last words of many sentences."""
_OPENERS = "([{\"'\u201e\u201c\u201a\u2018\u00ab\u00bb\u2039\u203a"
_BEHIND = frozenset(_BEHIND_ORDINALS.split())
_NUMBER = re.compile(r"\d|[IVXLCDM]+\b")
_WORD = re.compile(r"\w+")
# The second half of z. B., v. Chr., a. C., and of av. J.-C.
_HALF = re.compile(r"(?:[A-ZÄÖÜ]|Chr|Kr)\.|J\.-?C")
MOST_CHARACTERS = 16
"""No abbreviation is longer, with its opening signs and its stop."""


def goes_on(word: str, after: str) -> bool:
    """Return whether the stop behind `word` ends no sentence, because of what follows.

    Args:
        word: the last word before the stop, without it.
        after: what follows the blank behind the stop, at least its first word.
    """
    word, after = word.lstrip(_OPENERS), after.lstrip(_OPENERS)
    first = after[:1]
    is_number = word.isdigit()
    if first.islower() and (is_number or word in _OPEN_ENDS or word in _NUMBERED):
        return True
    if is_number and len(word) <= 2:
        follower = _WORD.match(after)
        return follower is not None and follower[0] in _BEHIND
    if word in _FIRST_HALVES and _HALF.match(after):
        return True
    return word in _ALWAYS or (word in _NUMBERED and _NUMBER.match(after) is not None)
