"""GAP, ambiguous pronouns (Webster et al. 2018, arXiv 1810.05201): from its TSVs to a file of features."""
