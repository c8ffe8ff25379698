"""Where in the model the time goes, and how close to the peaks of the GPU its operators run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.diagnose.finding import Finding
from analysis.diagnose.sentences import number
from analysis.metrics.kernels.modules import class_rows, module_rows
from analysis.metrics.kernels.operator_roofline import operator_roofline
from analysis.timeline import Timeline
from analysis.wording import flops, percent

if TYPE_CHECKING:
    import pandas as pd

_LEAST = 0.001
"""Share of the time from which a place is shown."""
_LITTLE = 0.01
_INDENT = "  "
_TOP = 30


def findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return module_classes (where modules were recorded) and modules; nothing where no work belongs to any place."""
    if not any(len(table) for found in timelines for table in (found.host, found.operators, found.ranges)):
        return []
    places = module_rows(timelines)
    if not (places["kind"] != "none").any() or not float(places["own_ms"].sum()):
        return []
    classes = class_rows(places)
    made = []
    if len(classes):
        said = f"{_first(classes)} for {percent(float(classes['own_share'].iloc[0]))} of the time of all work."
        made.append(Finding("module_classes", "Own time by class of module, mean per rank", classes, said))
    shown = places[places["total_share"] >= _LEAST]
    on_gpu = any(len(timeline.kernels) for timeline in timelines)
    what = "GPU" if on_gpu else "Operator"
    title = f"{what} time by place in the model, mean per rank (places with {percent(_LEAST)} or more)"
    return [*made, Finding("modules", title, _table(shown, on_gpu), _sentence(places))]


def _first(classes: "pd.DataFrame") -> str:
    name, instances = str(classes["name"].iloc[0]), int(classes["instances"].iloc[0])
    return f"{name} has the largest own time: {instances} instance{'s'[: instances != 1]}"


def _table(places: "pd.DataFrame", on_gpu: bool) -> "pd.DataFrame":
    names = [f"{_INDENT * depth}{name}" for depth, name in zip(places["depth"], places["name"], strict=True)]
    columns = ["name", "total_ms", "total_share", "own_ms", "backward_ms", "calls", "kernels", "kind", "depth"]
    table = places.assign(name=names)[[*columns, "ranks"]].reset_index(drop=True)
    unsaid = [] if on_gpu else ["kernels"]
    return table.drop(columns=[*unsaid, *(["backward_ms"] if not table["backward_ms"].any() else [])])


def _sentence(places: "pd.DataFrame") -> str:
    own = places.iloc[int(places["own_ms"].to_numpy().argmax())]
    whole = float(places["own_ms"].sum())
    said = f"{str(own['path'])[-200:]} has the largest own time: {number(float(own['own_ms']))} ms, "
    said += percent(float(own["own_ms"]) / whole)
    outer = places[places["depth"] == 0]
    backward = float(outer["backward_ms"].sum()) / whole
    said += f". The backward pass of these places takes {percent(backward)}" if backward else ""
    lost = float(outer.loc[outer["kind"] == "none", "own_ms"].sum()) / whole
    said += f"; {percent(lost)} belongs to no place" if lost > _LITTLE else ""
    return f"{said}."


def roofline_findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return operator_roofline; nothing where the trace has no sizes of inputs, or no GPU work in such operators."""
    table = operator_roofline(timelines)
    if not len(table):
        return []
    first = table.iloc[0]
    said = f"{first['operator']} {first['sizes']} ({first['dtype'] or 'unknown type'}) takes longest: "
    said += f"{number(float(first['time_ms']))} ms"
    said += f" at {flops(float(first['achieved_flops']))}" if first["achieved_flops"] > 0 else ""
    known = table[table["attainable_fraction"].notna()]
    if first["attainable_fraction"] > 0:
        said += f", {percent(float(first['attainable_fraction']))} of what the published peaks of {first['peak_of']} "
        said += f"allow ({first['bound']})"
    if len(known):
        taken, least = float(known["time_ms"].sum()), float((known["time_ms"] * known["attainable_fraction"]).sum())
        said += f". The rows with known peaks take {number(taken)} ms, {number(least)} ms at the peaks"
    else:
        said += ". The published peaks of this GPU and type are not known"
    title = f"Roofline of GEMMs, attention and norms by sizes and type, mean per rank (at most {_TOP})"
    return [Finding("operator_roofline", title, table.head(_TOP), f"{said}.")]
