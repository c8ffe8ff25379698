"""The order of the slow tests: of several processes none begins the longest file when the others have no more to do."""

import pytest

# Files by the seconds they take, longest first; the others take less.
LONGEST_FIRST = (
    "test_pretraining_learns", "test_launch_nodes", "test_train_kill", "test_squad_learns",
    "test_classify_real", "test_pretraining_real",
    "test_compare_strategies_command", "test_scaling_whole", "test_slurm", "test_profile_squad",
    "test_strategies_two_ranks", "test_bench", "test_resume_anywhere", "test_squad_whole", "test_autotune_command",
    "test_bombs",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
