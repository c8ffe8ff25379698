"""Communication: how much is exposed, which collectives are one, links, projections, what if."""
