"""The task of row_task.py in processes of their own, for Hugging Face's model too."""

from support.row_task import NAME
from support.row_task_model import RowTask as RowTask

from bench.implementations.hugging_face import CLASSIFICATION, MODELS

MODELS[NAME] = CLASSIFICATION
