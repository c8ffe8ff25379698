"""Figures, text tables and the HTML page."""
