"""A classification result as a document, with two labels."""

from typing import Any

from records.classification import FORMAT


def document(**changes: Any) -> dict[str, Any]:
    """Return the document of a finished run, with changed fields."""
    return {
        "format": FORMAT,
        "schema_version": 1,
        "labels": ["spam", "ham"],
        "label_distribution": {"train": {"ham": 8, "spam": 2}, "validate": {"ham": 1}, "test": {"ham": 3, "spam": 1}},
        "curve": [[1, 0.9], [2, 0.5]],
        "evaluations": [{"applied_steps": 2, "accuracy": 0.75, "balanced_accuracy": 0.7, "log_loss": 0.6}],
        "run": {"model": "tiny", "updates": 2, "begun_from": None},
        "test": {"confusion": [["ham", "ham", 2], ["ham", "spam", 1], ["spam", "spam", 1]]},
        **changes,
    }
