"""The record of `make gpu-acceptance` as tables for people (Markdown), made from its JSON alone."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def markdown(record: Row) -> str:
    """Return the page: what ran, how fast, for how much energy, what filled the memory, what kernels did."""
    versions = record["versions"]
    gpus = ", ".join(versions["gpus"]) or "no GPU"
    lines = [
        f"# GPU acceptance: {gpus}, {record['began'][:10]}",
        "",
        f"`{record['command']}` in {record['seconds']:.0f} s, torch {versions['torch']}, CUDA {versions['cuda']}, "
        f"Python {versions['python']}, {_packages(versions)}bertbench {versions['commit'] or 'without git'}"
        f"{_code(versions)}. {_outcomes(record)}",
        "",
    ]
    for part in (
        _missing, _steps, _correctness, _throughput, _light, _memory, _cores, _roofline, _profiles, _names, _commands
    ):  # fmt: skip
        lines += [*part(record), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _packages(versions: Row) -> str:
    found = {**({"cuDNN": versions["cudnn"]} if versions.get("cudnn") else {}), **(versions.get("packages") or {})}
    return "".join(f"{name} {version}, " for name, version in found.items())


def _code(versions: Row) -> str:
    return f" (code {versions['code']})" if versions.get("code") else ""


def _outcomes(record: Row) -> str:
    """One sentence on what ended how; what was not reached is named."""
    ends: dict[str, list[str]] = {}
    for step in record["steps"]:
        ends.setdefault(step["outcome"], []).append(step["name"])
    said = [f"{len(ends.pop('ok', []))} parts are ok"]
    said += [f"{outcome}: {', '.join(names)}" for outcome, names in ends.items()]
    if record.get("ended"):
        said.append(record["ended"])
    return "; ".join(said) + "."


def _missing(record: Row) -> Iterator[str]:
    """What was not there, and what is not in the tar."""
    for name, parts in (record["versions"].get("lacking") or {}).items():
        yield f"- Without {name}, which is not installed, left out: {', '.join(parts)}."
    yield from (f"- Not in the tar: {_cell(line)}." for line in (record.get("left_out") or ())[:20])


def _steps(record: Row) -> Iterator[str]:
    rows = [[step["name"], step["outcome"], _number(step["seconds"], 0), step["why"]] for step in record["steps"]]
    yield from _table("Parts", ("part", "outcome", "s", "reason"), rows)


def _correctness(record: Row) -> Iterator[str]:
    rows = [
        [
            check["name"],
            check["outcome"],
            _short(check.get("error")),
            _short(check.get("limit")),
            check.get("of"),
            check["why"],
        ]
        for found in _found(record, "correctness")
        for check in found.get("checks") or ()
    ]
    heads = ("check", "outcome", "largest relative error", "limit", "of", "reason")
    yield from _table("Numbers compared with references", heads, rows)


def _commands(record: Row) -> Iterator[str]:
    """The command of every part, to run it alone."""
    commands = [f"{step['name']}: python {shlex.join(step['command'])}" for step in record["steps"]]
    yield from ["## Commands", "", "```", *commands, "```"]


def _throughput(record: Row) -> Iterator[str]:
    rows = [
        [
            _who(row),
            f"{row['preset']} {row['seq_len']}",
            row["precision"],
            row["micro_batch_size"],
            _number(row.get("samples_per_second"), 1),
            _number(row.get("step_time_ms"), 2),
            _share(row.get("mfu")),
            _bytes(row.get("peak_memory_bytes")),
            _number(row.get("joules_per_sample"), 3),
            "" if row["status"] == "ok" else f"{row['status']}: {row['reason']}",
        ]
        for row in record["throughput"]
    ]
    heads = ("implementation", "model", "precision", "batch", "samples/s", "ms per step", "MFU", "memory", "J/sample")
    yield from _table("Throughput and energy", (*heads, "reason"), rows)
    rows = [
        [
            row["implementation"],
            f"{row['preset']} {row['seq_len']}",
            f"{_number(row['throughput_ratio'], 2)} x {row['reference']}",
            row["decided"],
        ]
        for step in _found(record, "throughput ")
        for row in step.get("ratios") or ()
        if row["throughput_ratio"] is not None
    ]
    yield from ["", *_table("Compared with the other implementations, one round", _RATIOS, rows)]


_RATIOS = ("implementation", "model", "samples/s", "decided")


def _light(record: Row) -> Iterator[str]:
    for name, found in _named(record, "speed-of-light"):
        rows = [[bar["name"], _number(bar["ms"], 2)] for bar in found.get("waterfall") or ()]
        floor, step = _number(found.get("floor_ms"), 2), _number(found.get("step_time_ms"), 2)
        title = f"Speed of light{name}: floor {floor} ms, step {step} ms"
        yield from [*_table(title, ("part", "ms"), rows), ""]


def _memory(record: Row) -> Iterator[str]:
    rows = [
        [
            f"{row['preset']} {row['precision']} {row['seq_len']}",
            row["micro_batch_size"],
            "yes" if row["proved"] else "no",
            row["fails_at"],
            row["failure"],
            " ".join(f"{size} {end}" for size, end in row["tried"]),
        ]
        for found in _found(record, "max batch")
        for row in found.get("max_batch") or ()
    ]
    heads = ("model", "largest batch", "proved", "fails at", "how", "tried")
    yield from _table("The largest batch", heads, rows)


def _cores(record: Row) -> Iterator[str]:
    heads = ("profile", "kernels", "FMA", "FP16", "tensor cores", "SFU", "DRAM")
    rows = [
        [
            name,
            row.get("kernels"),
            *(_percent(row.get(f"{pipe}_percent")) for pipe in ("fma", "fp16", "tensor", "sfu")),
            _bytes(row.get("dram_bytes")),
        ]
        for name, profile in _all_profiles(record)
        for row in profile["core_utilization"] or ()
    ]
    yield from _table("Core utilization while kernels run", heads, rows)


def _roofline(record: Row) -> Iterator[str]:
    for name, profile in _all_profiles(record):
        for title, heads, columns in (
            ("roofline_by_family", ("kind of work", "bound by", "of the time"), ("family", "bound", "time_share")),
            ("kernel_families", ("kind of work", "ms", "of kernel time"), ("family", "mean_ms", "kernel_time_share")),
        ):
            found = profile["findings"].get(title)
            if found and found["rows"]:
                rows = [[_cell_of(row, column) for column in columns] for row in found["rows"]]
                yield from [*_table(f"{name}: {found.get('title', title)}", heads, rows), ""]


def _profiles(record: Row) -> Iterator[str]:
    heads = ("profile", "rank", "computes", "weighted by multiprocessors", "x step time", "counted")
    rows = [
        [
            name,
            row.get("rank"),
            _share(row.get("compute_utilization")),
            _share(row.get("sm_weighted_utilization")),
            _number(profile.get("step_time_ratio"), 2),
            row.get("counted"),
        ]
        for name, profile in _all_profiles(record)
        for row in profile["compute_utilization"] or ()
    ]
    yield from _table("Profiles", heads, rows)


def _names(record: Row) -> Iterator[str]:
    rows = []
    for name, profile in _all_profiles(record):
        names = profile["kernel_names"]
        if names and names["names"]:
            of_none = "; ".join(f"{one['name'][:100]} {_share(one['share'])}" for one in names["other"][:5])
            rows.append([name, names["names"], _share(names["other_share"]), of_none])
    yield from _table("Kernels without a family", ("profile", "names", "of kernel time", "largest"), rows)


def _found(record: Row, start: str) -> Iterator[Row]:
    yield from (figures for _, figures in _named(record, start))


def _named(record: Row, start: str) -> Iterator[tuple[str, Row]]:
    """The figures of the parts whose name begins so, with the rest of the name."""
    for step in record["steps"]:
        if step["name"].startswith(start) and isinstance(step["figures"], dict):
            yield step["name"].removeprefix(start), step["figures"]


def _all_profiles(record: Row) -> Iterator[tuple[str, Row]]:
    for step in record["steps"]:
        if step["name"].startswith("profile ") and isinstance(step["figures"], dict):
            for profile in step["figures"].get("profiles") or ():
                yield step["name"].removeprefix("profile "), profile


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return a heading and a table, or that there is nothing."""
    if not rows:
        return [f"## {title}", "", "Nothing was measured."]
    line = "|".join("---" for _ in heads)
    return [
        f"## {title}",
        "",
        f"| {' | '.join(heads)} |",
        f"|{line}|",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
    ]


def _cell(value: Any) -> str:
    text = re.sub(r"\s+", " ", "" if value is None else str(value))
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")[:300]


def _cell_of(row: Row, column: str) -> str:
    value = row.get(column)
    if column.endswith("_share"):
        return _share(value)
    return _number(value, 3) if isinstance(value, float) else _cell(value)


def _who(row: Row) -> str:
    return f"{row['implementation']} {row['levers']}".strip()


def _number(value: Any, digits: int) -> str:
    return "" if value in (None, "") else f"{float(value):,.{digits}f}"


def _share(value: Any) -> str:
    return "" if value in (None, "") else f"{100 * float(value):.1f} %"


def _percent(value: Any) -> str:
    return "" if value in (None, "") else f"{float(value):.1f} %"


def _bytes(value: Any) -> str:
    return "" if value in (None, "") else f"{float(value) / 2**30:,.2f} GiB"


def _short(value: Any) -> str:
    """Return a number in two digits, 1.3e-5 and not 1.3e-05."""
    return "" if value is None else re.sub(r"e-0(\d)$", r"e-\1", f"{float(value):.2g}")
