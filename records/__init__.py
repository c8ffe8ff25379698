"""The contract between measuring and explaining: what is in a run directory, column by column and file by file."""
