"""What runs inside the processes of a script that `bertbench measure` measures.

These modules import the standard library alone, since the script's Python need not be bertbench's; torch comes from the
script. `on_path/sitecustomize.py` loads them by their path: a folder on PYTHONPATH must hold nothing that hides a
module of the script.
"""
