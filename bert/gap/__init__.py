"""GAP: official scores, prediction files, and the heads that decide which name a pronoun means."""
