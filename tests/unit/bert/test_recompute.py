"""Activations that are made again in the backward pass change no loss (what is kept: test_memory.py)."""

import pytest
from support.training_runs import Recorder, run, settings


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_losses_are_the_same_bit_for_bit(tmp_path, dropout):
    plain, again = Recorder(), Recorder()
    run(settings("synthetic", steps=4, dropout=dropout), tmp_path / "plain", plain)
    run(settings("synthetic", steps=4, dropout=dropout, activation_checkpointing=True), tmp_path / "again", again)
    assert again.losses == plain.losses and len(plain.losses) == 4


def test_a_run_goes_on_with_or_without_it_and_says_nothing(tmp_path):
    whole, first, second = Recorder(), Recorder(stop_after=3), Recorder()
    run(settings("synthetic", steps=6), tmp_path / "whole", whole)
    run(settings("synthetic", steps=6, activation_checkpointing=True), tmp_path / "parts", first)
    run(settings("synthetic", steps=6), tmp_path / "parts", second)
    assert {**first.losses, **second.losses} == whole.losses
    assert not second.warnings
