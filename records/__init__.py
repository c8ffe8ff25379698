"""The contract between measuring and explaining: what lies in a run directory, column by column and file by file."""
