"""Makes the task of row_task.py known in every process that has this folder on its PYTHONPATH."""

from support import row_task

row_task.register()
