"""Scales come from the magnitudes of earlier updates, change once per update, and can be saved."""

import pytest
import torch
from torch import Tensor

from bert.speed.fp8 import FORMATS, GRADIENT, HISTORY, INPUT, MARGIN, WEIGHT, Scales, quantize, scale_of

E4M3 = torch.finfo(torch.float8_e4m3fn).max


def made(layers: int = 2) -> Scales:
    scales = Scales()
    assert [scales.add(torch.device("cpu")) for _ in range(layers)] == list(range(layers))
    return scales


def full(value: float) -> Tensor:
    return torch.full((16, 32), value)


def off(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_the_scale_of_a_magnitude_maps_it_to_the_formats_largest_number(dtype: torch.dtype, size: float) -> None:
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * size
    for margin, top in ((1.0, 1.0), (2.0, 0.5)):
        scale = scale_of(values.abs().amax(), dtype, margin)
        low = quantize(values, dtype, scale).float()
        assert float(low.abs().max()) == top * torch.finfo(dtype).max
        assert off(low * scale, values) < (0.04 if dtype == torch.float8_e4m3fn else 0.08)


def test_zeros_have_a_scale_and_what_is_not_finite_is_no_number() -> None:
    assert scale_of(torch.zeros(()), torch.float8_e4m3fn) == 1
    values = torch.tensor([0.0, 1e9, -1e9, torch.inf, -torch.inf, torch.nan])
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        most = torch.finfo(dtype).max
        low = quantize(values, dtype, torch.ones(())).float()
        assert low[:3].tolist() == [0, most, -most] and low[3:].isnan().all()


def test_the_first_update_measures_and_later_ones_use_the_largest_of_their_history() -> None:
    scales, found = made(), []
    magnitudes = [4.0, 1.0, 32.0, *[1.0] * (HISTORY + 1)]  # 16 updates later the 32 is forgotten
    for update, magnitude in enumerate(magnitudes):
        low, columns, scale = scales.quantize(full(magnitude), 0, INPUT)
        found.append(float(scale) * E4M3 / MARGIN)
        assert torch.equal(columns.float(), low.float().t())
        saturated = update == 2  # 32 where twice 4 was the largest to come
        assert float(low.float().max() * scale) == pytest.approx(8 if saturated else magnitude, rel=2**-4)
        scales.renew()
        assert float(scales.saturated) == (update >= 2)
    assert found == pytest.approx([4, 4, 4, *[32] * HISTORY, 1])


def test_scales_change_once_per_update_however_many_layers_and_micro_steps() -> None:
    scales = made()
    for update in range(3):
        seen = set()
        for micro_step in (1, 3, 2):
            seen.add(float(scales.quantize(full(10.0**update * micro_step), 0, INPUT).scale))
        assert len(seen) == 1
        # The first update measures its first micro-step, later ones the largest of the one before.
        expected = 1 if update == 0 else 3 * 10.0 ** (update - 1)
        assert seen.pop() == pytest.approx(expected * MARGIN / E4M3)
        scales.renew()


def test_evaluation_leaves_no_trace_and_roles_and_layers_are_apart() -> None:
    scales = made()
    before = scales.quantize(full(1.0), 0, INPUT).scale.clone()
    scales.quantize(full(7.0), 0, INPUT, record=False)
    evaluated = scales.quantize(full(7.0), 1, INPUT, record=False)
    assert float(evaluated.scale) == pytest.approx(7 * MARGIN / E4M3)  # its own, as there is none
    scales.renew()
    assert torch.equal(scales.quantize(full(7.0), 0, INPUT, record=False).scale, before)
    assert float(scales.quantize(full(2.0), 1, INPUT).scale) == pytest.approx(2 * MARGIN / E4M3)
    gradient = scales.quantize(full(3.0), 0, GRADIENT)
    assert gradient.rows.dtype == FORMATS[GRADIENT] == torch.float8_e5m2
    assert float(gradient.scale) == pytest.approx(3 * MARGIN / torch.finfo(torch.float8_e5m2).max)


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_a_lost_update_does_not_change_scales(lost: float) -> None:
    scales = made()
    expected = scales.quantize(full(1.0), 0, INPUT).scale.clone()
    scales.renew()
    assert scales.quantize(full(lost), 0, INPUT).rows.float().isnan().all()
    scales.renew()
    assert torch.equal(scales.quantize(full(1.0), 0, INPUT).scale, expected)


def test_scales_and_records_stay_where_they_are() -> None:
    scales = made()
    before = scales.cast(0, INPUT, measure=lambda: torch.tensor(2.0))
    state = {name: value.clone() for name, value in scales.state().items()}
    scales.quantize(full(5.0), 0, INPUT)
    scales.renew()
    assert before is not None and float(before.scale) == pytest.approx(5 * MARGIN / E4M3)
    assert scales.load_state(state) and float(before.scale) == pytest.approx(2 * MARGIN / E4M3)
    now = scales.cast(0, INPUT)
    assert now is not None and now.record is before.record and now.scale is before.scale


def test_a_saved_state_continues_with_the_same_scales() -> None:
    scales, other = made(), made()
    for magnitude in (1.0, 5.0):
        scales.renew()
        scales.quantize(full(magnitude), 0, INPUT)
    scales.quantize(full(3.0), 1, WEIGHT)  # measured, and not renewed yet
    state = {name: value.clone() for name, value in scales.state().items()}
    assert other.load_state(state)
    for each in (scales, other):
        each.quantize(full(9.0), 0, INPUT)
    assert all(torch.equal(value, other.state()[name]) for name, value in scales.state().items())
    for _ in range(2):
        for layer, role in ((0, INPUT), (1, WEIGHT)):
            pair = [each.quantize(full(2.0), layer, role).scale for each in (scales, other)]
            assert torch.equal(*pair)
        scales.renew()
        other.renew()
    assert not made(3).load_state(state) and not made().load_state({})
