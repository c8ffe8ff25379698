"""Sentences of languages in Latin script, divided by hand: abbreviations and ordinals end none, real ends stay."""

import pytest

from bert.corpus.sentences import SPLITTERS, load_splitter
from common.errors import MissingToolError

# Sentences as a reader of the language divides them, one a line.
FOREIGN = {
    "german": """Das gilt u. a. bzw. z. B. für Häuser, die vor 1900 gebaut wurden.
Sie wohnt im Haus Nr. 5 an der Ecke.
Das Werk entstand am 3. Oktober 1990 im 19. Jahrhundert nach Dr. Weber, Prof. Klein und Hrn. Groß, dem Maler.
Das Haus kostete 3 Mio. Euro, Steuern usw.
Caesar starb 44 v. Chr. in Rom, vgl. Kap. 5.
Das war 1990.
Januar und Februar waren kalt.""",
    "french": """Hier Mme. Curie et MM. Dupont sont venus.
Elle est née vers 50 apr. J.-C. dans la ville.
Il faut lire le chap. XII, cf. Platon.
Le marché ferme ensuite.""",
    "spanish": """Ayer la Sra. López y la Dra. Ruiz llegaron.
La casa lleva el núm. 5 desde entonces.
La Srta. Pérez vive en EE. UU. desde joven.""",
    "portuguese": """A Dra. Costa e a Profa. Lima vieram.
No séc. XIX havia muitos navios no porto.""",
    "italian": """Il dott. Verdi e la sig.ra Bianchi vennero insieme.
Si vendono pane, vino ecc.
Poi tornarono a casa.""",
    "dutch": """Daarna kwamen dhr. Jansen en mevr. De Vries binnen.
Er zijn dieren, bijv. honden, katten enz.
Daarna ging hij weg.""",
    "latvian": """Tas ir 1990. g. sākums.
Pilsētā ir skolas u. c. ēkas, kuras ir vecas.
Tas notika 19. gs. beigās un 20. gs. sākumā.
Viņš dzimis 1990. gada 5. maijā.""",
    "polish": """Mieszka przy ul. Długiej w Krakowie.
Kościół św. Jana stoi od 1990 r. w tym miejscu.""",
    "czech": """Byl to např. Karel a tzv. Velký.
Kostel sv. Jana stojí dodnes.""",
    "scandinavian": """Den 3. oktober 1990 kom han til byen.
Det er f.eks. Oslo eller bl.a. Bergen.""",
    "english": """He read vol. 5 and met Dr. Roylott.
He said no.
She sat in his art.
The cap fell on his cap.
Tell me more about it.
That was in 1990.
March came late, on p. 12.
It was 5 p.m.
He left.""",
}  # fmt: skip


@pytest.mark.parametrize("name", SPLITTERS)
@pytest.mark.parametrize("language", FOREIGN)
def test_abbreviations_end_no_sentence_and_real_ends_stay(language: str, name: str) -> None:
    sentences = FOREIGN[language].split("\n")
    try:
        split = load_splitter(name)
    except MissingToolError as error:
        pytest.skip(str(error))
    assert [found.decode() for found in split([" ".join(sentences).encode()])] == sentences
    # A paragraph ends whatever it ends with.
    ends = [b"Er wohnt in Nr.", b"5 kam z. B.", b"und dr.", b"Meier"]
    assert split(ends) == ends
