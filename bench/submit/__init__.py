"""Writes the job files of clusters. The user edits them, and the tools of the cluster check and submit them."""
