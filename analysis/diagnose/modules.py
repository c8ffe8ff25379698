"""Where in the model the time goes, and how close to the peaks of the GPU its operators run."""

from collections.abc import Sequence

from analysis.diagnose.finding import Finding
from analysis.metrics.kernels.modules import OUTSIDE, class_rows, module_rows
from analysis.metrics.kernels.operator_roofline import operator_roofline
from analysis.timeline import Timeline
from analysis.wording import number, percent

_LEAST = 0.001
"""Share of the time from which a module is shown."""
_TOP = 30


def findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return module_classes and modules; nothing where no work belongs to a module."""
    places = module_rows(timelines)
    classes = class_rows(places)
    if not len(classes) or not float(places["own_ms"].sum()):
        return []
    first, largest = classes.iloc[0], places.iloc[int(places["own_ms"].to_numpy().argmax())]
    outside = float(places.loc[places["path"] == OUTSIDE, "total_share"].sum())
    shown = places[places["total_share"] >= _LEAST].reset_index(drop=True)
    shown["name"] = ["  " * depth + name for depth, name in zip(shown["depth"], shown["name"], strict=True)]
    columns = ["name", "total_ms", "total_share", "own_ms", "backward_ms", "calls", "kernels", "depth", "ranks"]
    what = "GPU"
    if not any(len(timeline.kernels) for timeline in timelines):
        what = "Operator"
        columns.remove("kernels")
    share, time = percent(first["own_share"]), number(largest["own_ms"])
    by_class = f"{first['name']} has the largest own time: {share} of all work, in {first['instances']} instances."
    by_module = f"{largest['name']} has the largest own time, {time} ms; {percent(outside)} is outside."
    title = f"{what} time by module, mean per rank (modules with {percent(_LEAST)} or more)"
    return [
        Finding("module_classes", "Own time by class of module, mean per rank", classes, by_class),
        Finding("modules", title, shown[columns], by_module),
    ]


def roofline_findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return operator_roofline; nothing where the trace has no sizes of inputs, or no GPU work in such operators."""
    table = operator_roofline(timelines)
    if not len(table):
        return []
    known = table[table["attainable_fraction"].notna()]
    sentence = "The published peaks of this GPU and type are not known."
    if len(known):
        taken, least = float(known["time_ms"].sum()), float((known["time_ms"] * known["attainable_fraction"]).sum())
        sentence = f"Operators with known peaks take {number(taken)} ms; at the published peaks {number(least)} ms."
    title = f"Roofline of GEMMs and attention by sizes and type, mean per rank (at most {_TOP})"
    return [Finding("operator_roofline", title, table.head(_TOP), sentence)]
