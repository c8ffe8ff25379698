"""How answers to the tasks of GLUE are scored and handed in. Imports no torch."""
