"""The nine tasks of GLUE: their tables read, and made features of. Imports no torch."""
