"""Reading what nvidia-smi logs: hand-made ones of each form, and the real one of ../shared/traces/misc."""

import gzip
from pathlib import Path

import pytest
from support import shared_files
from support.profiles import assert_damage_is_survived
from support.refusals import refused

from analysis.counters import Summary
from analysis.readers import nvidia_smi
from analysis.readers.nvidia_smi import quantity_of, read, reading, recognises
from analysis.readers.registry import Head, find_reader, read_head

REAL = shared_files.TRACES / "misc/smi__nvidia_smi.csv"

WITH_UNITS = """\
timestamp, index, name, utilization.gpu [%], memory.used [MiB], power.draw [W], clocks.sm [MHz], pstate, fan.speed [%]
2024/01/31 12:00:00.123, 0, NVIDIA H100 80GB HBM3, 35 %, 81559 MiB, 74.01 W, 1980 MHz, P0, [N/A]
2024/01/31 12:00:01.123, 1, NVIDIA H100 80GB HBM3, 0 %, 4 MiB, [Not Supported], 345 MHz, P8, N/A
"""
DMON = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk     fb
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz     MB
 20240131   12:00:00      0    117     45      -     13      6   1593    210   2847
"""


def log(tmp_path: Path, text: str, name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def values(found: Summary, quantity: str) -> list[float]:
    return list(found.table.loc[found.table["quantity"] == quantity, "value"])


def test_values_with_their_units_come_in_the_suites_units(tmp_path: Path) -> None:
    found = read(log(tmp_path, WITH_UNITS))
    assert found.what == "sensors" and list(found.table.columns) == ["time_ns", "device", "quantity", "value"]
    assert values(found, "gpu_memory_used_bytes") == [81559 * 2**20, 4 * 2**20]
    assert values(found, "gpu_utilization_percent") == [35.0, 0.0] and values(found, "power_watts") == [74.01]
    assert values(found, "sm_clock_mhz") == [1980.0, 345.0] and values(found, "performance_state") == [0.0, 8.0]
    assert found.table["time_ns"].iloc[0] == 1_706_702_400_123_000_000
    assert list(found.table["device"].unique()) == ["0", "1"] and found.facts["names"]["0"] == "NVIDIA H100 80GB HBM3"


def test_a_value_that_is_not_there_is_no_reading_and_is_stated(tmp_path: Path) -> None:
    found = read(log(tmp_path, WITH_UNITS))
    assert values(found, "fan_percent") == [] and any("fan_percent has no value in 2 rows" in p for p in found.problems)
    assert any("power_watts has no value in 1 rows" in p for p in found.problems)
    assert any("UTC is assumed" in p for p in found.problems)


def test_the_same_without_units_reads_the_same(tmp_path: Path) -> None:
    bare = "\n".join(
        line.replace(" MiB", "").replace(" W", "").replace(" MHz", "").replace(" %", "") if number else line
        for number, line in enumerate(WITH_UNITS.splitlines())
    )
    assert read(log(tmp_path, bare)).table.equals(read(log(tmp_path, WITH_UNITS, "b.csv")).table)


def test_dmon_reads_as_the_query_does(tmp_path: Path) -> None:
    found = read(log(tmp_path, DMON))
    rows = {row["quantity"]: row["value"] for row in found.table.to_dict("records")}
    assert rows == {
        "power_watts": 117.0,
        "temperature_celsius": 45.0,
        "gpu_utilization_percent": 13.0,
        "gpu_memory_utilization_percent": 6.0,
        "memory_clock_mhz": 1593.0,
        "sm_clock_mhz": 210.0,
        "gpu_memory_used_bytes": 2847 * 2**20,
    }
    assert set(found.table["time_ns"]) == {1_706_702_400_000_000_000}


def test_dmon_without_a_clock_has_no_times(tmp_path: Path) -> None:
    found = read(log(tmp_path, "# gpu    pwr  gtemp\n# Idx      W      C\n    0     86     33\n    0    267     39\n"))
    assert values(found, "power_watts") == [86.0, 267.0] and set(found.table["time_ns"]) == {-1}
    assert any("no readable time" in problem for problem in found.problems)


@pytest.mark.parametrize("text", ["2424/01/31 12:00:00", "1931/01/31 12:00:00", "0001-01-01T00:00:00+14:00", "soon"])
def test_times_that_no_clock_has_are_no_times(tmp_path: Path, text: str) -> None:
    found = read(log(tmp_path, f"timestamp, index, power.draw [W]\n{text}, 0, 10 W\n"))
    assert list(found.table["time_ns"]) == [-1] and values(found, "power_watts") == [10.0]


def test_a_log_that_was_restarted_with_other_columns_is_followed(tmp_path: Path) -> None:
    text = "index, power.draw [W]\n0, 10.0 W\nstep 3 done\nindex, temperature.gpu\n0, 50\n1, 2, 3\n"
    found = read(log(tmp_path, text))
    assert values(found, "power_watts") == [10.0] and values(found, "temperature_celsius") == [50.0]
    assert any("2 lines with another number of fields" in problem for problem in found.problems)


def test_throttle_reasons_are_nvmls_bit_mask(tmp_path: Path) -> None:
    names = "index, clocks_throttle_reasons.active, clocks_throttle_reasons.hw_slowdown"
    text = f"{names}\n0, 0x0000000000000004, Not Active\n"
    found = read(log(tmp_path, text))
    assert values(found, "throttle_reasons") == [4.0] and values(found, "throttle_hw_slowdown") == [0.0]


@pytest.mark.parametrize(
    ("column", "text", "name", "value"),
    [
        ("memory.used [MiB]", "1 GiB", "gpu_memory_used_bytes", 2.0**30),
        ("power.draw", "1500 mW", "power_watts", 1.5),
        ("ecc.errors [ms]", "7", "ecc_errors_ms", 7.0),
        ("power.draw [W]", "1e400", "power_watts", None),
        ("power.draw [W]", "9" * 40, "power_watts", None),
        ("power.draw [W]", "-", "power_watts", None),
        ("persistence_mode", "Enabled", None, None),
    ],
)
def test_units_are_read_from_the_value_then_the_column(column: str, text: str, name: str, value: float) -> None:
    found = quantity_of(column, column.partition(" [")[0])
    assert (found.name if found else None) == name
    assert found is None or reading(found, text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# gpu        pid  type    sm   mem\n# Idx          #   C/G     %     %\n    0    1 C 1 1\n", "pmon"),
        ("==============NVSMI LOG==============\n\nTimestamp : now\n", "XML page"),
        ("| NVIDIA-SMI 535.129.03   Driver Version: 535.129.03   CUDA Version: 12.2 |\n", "XML page"),
        ("2024/01/31 12:00:00.123, 81559 MiB, 74.01 W\n", "noheader"),
    ],
)
def test_other_forms_are_recognised_and_named_with_the_command(tmp_path: Path, text: str, message: str) -> None:
    path = log(tmp_path, text)
    assert recognises(read_head(path))
    with refused("file-format", path, message, "--query-gpu=timestamp"):
        read(path)


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n",
        "ID,Kernel Name,power.draws\n",
        "# GPU kernels,\n",
        "read power.draw, then go on\n",
        '{"traceEvents": []}',
        "\0\0\0",
    ],
)
def test_other_files_are_not_taken(tmp_path: Path, text: str) -> None:
    assert not recognises(Head(tmp_path, text.encode()))


def test_utf16_of_a_redirect_in_powershell_and_gzip_are_read(tmp_path: Path) -> None:
    wide = tmp_path / "wide.csv"
    wide.write_bytes(WITH_UNITS.encode("utf-16"))
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(WITH_UNITS.encode()))
    plain = read(log(tmp_path, WITH_UNITS)).table
    assert len(plain) > 0 and read(wide).table.equals(plain) and read(packed).table.equals(plain)


def test_the_real_log_agrees_with_its_columns_read_one_by_one() -> None:
    if not REAL.exists():
        pytest.skip("../shared/traces is not here")
    reader = find_reader(read_head(REAL))
    assert reader is not None and reader.name == "nvidia-smi"
    found = read(REAL)
    rows = [line.split(",") for line in REAL.read_text().splitlines()[1:]]
    power = [float(row[5]) for row in rows]
    assert values(found, "power_watts") == power and len(power) == 43
    assert values(found, "gpu_memory_total_bytes") == [81559 * 2**20] * 43
    assert list(found.table["device"].unique()) == list("01234567")
    assert found.table["time_ns"].iloc[0] == 1_757_323_610_000_000_000  # 2025-09-08T17:26:50+08:00
    assert any("two columns name the GPU" in problem for problem in found.problems)


@pytest.mark.parametrize("text", [WITH_UNITS, DMON])
def test_damaged_logs_give_a_result_or_an_input_error(tmp_path: Path, text: str) -> None:
    assert_damage_is_survived(nvidia_smi, text.encode(), tmp_path / "damaged.csv", seed=1)
