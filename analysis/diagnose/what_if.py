"""What a replay of the traces says would help, and what to try."""

from collections.abc import Iterator, Sequence

from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import Finding
from analysis.diagnose.idle import diagnosis, launch_bound
from analysis.metrics.communication.what_if import LARGEST_ERROR, NO_HOST, SCENARIO_ERROR, WORST_ERROR, WhatIf
from analysis.metrics.time.idle import IdleCauses, idle_causes
from analysis.timeline import Timeline
from analysis.wording import percent

_LITTLE = 0.05


def replay_finding(answers: WhatIf, timelines: Sequence[Timeline], on_gpu: bool, context: Context) -> Finding:
    """Return what_if: the scenarios of the slowest rank, what limits it, and what to do about each limit.

    Args:
        answers: of `metrics.communication.what_if.what_if`.
        timelines: the traces that were replayed, one per rank.
        on_gpu: whether they hold work of GPUs.
        context: the recorded trial, where it is known.
    """
    title = "What if something were faster or slower (slowest rank, to the end of all work launched in the window)"
    if not len(answers.table):
        return Finding("what_if", title, answers.table, f"{answers.problems[0].capitalize()}.")
    table = answers.slowest().drop(columns="window_ms")  # the slowest rank need not be the same one
    known = table["expected_error_share"].notna().tolist()
    unusual = [any(known) and not one for one in known]  # if none is known, the trace is the reason
    told = "; ".join(
        f"{row['scenario']}: {_change(float(row['saved_share']))}"
        + (" (larger than the changes whose error is known)" if odd else "")
        for row, odd in zip(table.to_dict("records")[1:], unusual[1:], strict=True)
    )
    idles = [row for row in map(idle_causes, timelines) if row is not None and row.span_ns] if on_gpu else []
    host_remedy = f"use fewer, larger operators ({context.fewer_operators})"
    if on_gpu:
        host_remedy = _host_advice(idles, answers.limits.get("host", 0.0), context)
    advice = _holds_up(answers, host_remedy)
    doubts = "".join(f"; {problem}" for problem in answers.problems)
    sentence = f"Replayed time of the slowest rank ({told or 'as traced'}); {advice}{_trust(answers)}{doubts}."
    if "free:" in told and len(answers.table["rank"].unique()) > 1:
        sentence = sentence.removesuffix(".") + "; free communication still waits for late ranks."
    return Finding("what_if", title, table, sentence, tuple(_advice(answers, idles, host_remedy, context)))


def _advice(answers: WhatIf, rows: Sequence[IdleCauses], host_remedy: str, context: Context) -> Iterator[Advice]:
    """Yield one piece of advice per limit of the replay: what the slowest rank's window loses when that takes no time.

    Where some ranks are launch-bound and the others wait for them, that is one cause: the host.
    """
    found = diagnosis(rows) if rows else None
    host, waiting = answers.limits.get("host", 0.0), answers.limits.get("waiting", 0.0)
    shares = [diagnosis([row]).launches for row in rows]
    bound = max(shares, default=0.0) >= LEAST
    unequal = bound and max(shares) - min(shares) >= LEAST
    one_cause = unequal and host >= LEAST and waiting >= LEAST
    if "host" in answers.limits:
        if found is not None and bound and found.host in ("", "launch_bound"):
            seen = launch_bound(rows, others_wait=one_cause)
            seen += f"; a replay in which the host takes no time is {percent(host)} shorter"
        elif found is not None and found.host == "data_wait":
            seen = "the GPU waits while the CPU loads data"
        else:
            seen = "the host limits the step"
        cause = "data" if found is not None and found.host == "data_wait" else "host"
        yield Advice(cause=cause, seen=seen, remedy=host_remedy, saves=max(0.0, host), firm=True)
    if waiting >= LEAST and not one_cause:
        seen, remedy = "ranks wait for late ranks", "find out why they are late, and balance the work"
        yield Advice(cause="waiting", seen=seen, remedy=remedy, saves=waiting, firm=True)
    if answers.limits.get("communication", 0.0) >= LEAST:
        alone = "waiting" not in answers.limits
        seen = f"communication{' (waiting for other ranks included)' if alone else ''} is exposed"
        less = "gradient accumulation" if context.has("bf16-gradients") else "16-bit gradients, gradient accumulation"
        remedy = f"overlap more of it (smaller buckets), or send less ({less})"
        saves = answers.limits["communication"]
        yield Advice(cause="communication", seen=seen, remedy=remedy, saves=saves, firm=True)


def _holds_up(answers: WhatIf, host_remedy: str) -> str:
    """Say what the step waits for: what saves the most when it takes no time, not what the time is spent with."""
    most = max(answers.limits, key=answers.limits.__getitem__)
    if answers.limits[most] >= _LITTLE:
        advice = {
            "host": f"the host limits it most: {host_remedy}",
            "waiting": "waiting for late ranks limits it most: find out why they are late",
            "communication": "transfers limit it most: overlap more of them, or send less"
            if "waiting" in answers.limits
            else "communication, waiting included, limits it most: read the traces of all ranks to separate the two",
        }[most]
        return f"{advice}, {_change(answers.limits[most])} at most"
    names = {"communication": "communication", "waiting": "waiting for other ranks", "host": "the host"}
    none = [names[name] for name in answers.limits]
    path = answers.paths_ms["as traced"]
    longest = max(path, key=path.__getitem__)
    said = f"removing {' or '.join(none)} alone saves less than 5 %"
    if not path[longest]:
        return said
    said += f", most of the critical path is {longest} ({percent(path[longest] / sum(path.values()))})"
    next_path = answers.paths_ms.get(NO_HOST.name, {})
    after = max(next_path, key=next_path.__getitem__, default="host")
    if longest == "host" and after != longest:
        said += f", and without host time {after} takes as long"
    return said


def _host_advice(rows: Sequence[IdleCauses], saves: float, context: Context) -> str:
    """What to try against a slow host: what the idle time of all ranks says, or of the rank that has the most.

    Args:
        rows: of all ranks.
        saves: share of the time that a replay without host time saves.
        context: the recorded trial, where it is known.
    """
    if not rows:
        return "check what the CPU does in the largest idle gaps (`bertbench analyze`)"
    most = max(rows, key=lambda row: row.idle_ns / row.span_ns)
    idle = most.idle_ns / most.span_ns
    fewer = f"launch fewer, larger kernels ({context.fewer_launches})"
    for found in (diagnosis(rows), diagnosis([most])):
        if found.host:
            return {
                "launch_bound": fewer,
                "host_pause": f"find out what the CPU does in its pauses ({found.pausing})",
                "data_wait": "use more loader workers or prefetching, as it loads data while the GPU is idle",
            }[found.host]
    if saves > idle + _LITTLE:
        return f"{fewer}, as GPUs that wait for it run other work meanwhile, such as collectives, and are not idle"
    if idle < _LITTLE:
        return "no GPU is idle for 5 % of the time, so it only delays the first or the last work"
    return "check what the CPU does in the largest idle gaps (`bertbench analyze`)"


def _trust(answers: WhatIf) -> str:
    """Say how far the scenarios may be off; the unchanged replay shows that the trace is understood, no more."""
    if answers.outside:
        said = f"; the error of these results is unknown for this trace{answers.outside}"
    else:
        said = (
            f"; on generated traces with known results, 95 % of replays are within {percent(SCENARIO_ERROR)} and all "
            f"within {percent(WORST_ERROR)}"
        )
    if answers.error is None or answers.error > LARGEST_ERROR:
        return said
    return f"{said}; the unchanged replay reproduces this trace to within {percent(max(0.001, answers.error))}"


def _change(saved: float) -> str:
    if abs(saved) < 0.0005:
        return "no change"
    return f"{percent(saved)} less" if saved > 0 else f"{percent(-saved)} more"
