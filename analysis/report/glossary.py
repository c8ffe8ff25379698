"""What each number of a report means, in a sentence with its unit; docs/explanation/measurement.md is the long form."""

GLOSSARY: tuple[tuple[str, str], ...] = (
    ("step", "One optimizer step: grad_accum_steps micro-steps of micro_batch_size sequences on every device."),
    (
        "step time (ms)",
        "Median over the window of the time of one step, of the slowest rank in each step. Waiting for data is part of "
        "it. On a GPU it is measured with CUDA events, elsewhere with a monotonic clock.",
    ),
    (
        "window",
        "The steps that count: [start, stop) as given, or all steps after the detected end of warm-up (MSER, White "
        "1997, made robust against outliers). Warm-up is in no number.",
    ),
    (
        "95 % interval",
        "Moving-block bootstrap interval of the median step time (Künsch 1989). With several rounds processes are "
        "resampled first, then blocks of steps. Of one round it holds the noise within that process only.",
    ),
    (
        "samples/s",
        "Sequences per second over all devices: mean sequences of a step, divided by the median step time.",
    ),
    ("tokens/s", "Real tokens per second (attention mask 1), over all devices. Padding is not counted."),
    ("padding efficiency", "Real tokens / all positions, padding included."),
    (
        "MFU",
        "Model FLOP/s / peak. Model FLOPs are what the formula of the model needs (recomputation not counted); the "
        "peak is the fastest matrix product measured on the same devices just before and after, summed over the ranks. "
        "It is no data-sheet value.",
    ),
    (
        "peak memory",
        "Of the rank that needs most: the device allocator's peak on a GPU, the resident set of the process on a CPU.",
    ),
    (
        "throughput ratio",
        "samples/s of an implementation / samples/s of the reference at the same configuration. 2 means twice as fast.",
    ),
    (
        "time saved",
        "1 - new time / old time, per sample. A throughput ratio of 2 saves 50 % of the time: two different numbers.",
    ),
    (
        "decided",
        "A difference is decided when at least three interleaved processes per side give a 95 % interval of the ratio "
        "that excludes 1 or lies within 5 % of it, or when it exceeds the known run-to-run spread of the machine.",
    ),
    (
        "scaling efficiency",
        "Throughput on n devices / (throughput on the fewest devices x the increase in devices). Weak keeps the batch "
        "of a device, strong keeps the global batch. Ranks on a CPU share the same cores: there it is the ratio of the "
        "two throughputs, against the same total cores.",
    ),
    (
        "exposed communication",
        "From the last gradient being ready to the end of the backward pass: all-reduce (and waiting for slower ranks) "
        "that computation did not hide.",
    ),
    ("own work", "Step time less exposed communication and data wait: what a rank itself needs. Shows the straggler."),
    ("skew", "Own work of a rank / own work of the quickest rank - 1."),
    ("data wait", "Time at the start of a step until its batch is there."),
    (
        "input / training",
        "samples/s of the input alone (batches drawn, adapted and pinned, nothing done with them) / samples/s of "
        "training with the same data and configuration. Above 1 training need not wait.",
    ),
    (
        "shards read",
        "Samples of compressed shards that the slowest rank reads per second, beside making batches. Over an epoch the "
        "input sustains no more, for all ranks together. Shards stored plainly are mapped, not read.",
    ),
    (
        "gap",
        "samples/s on real data / samples/s on batches made up beforehand with the same lengths - 1. Below 0 real data "
        "cost speed.",
    ),
    (
        "energy",
        "Energy counters or integrated power of the devices over the window, in joules; idle power is part of it.",
    ),
    ("cost", "Price per hour / 3600 / samples/s x 1,000,000: the cost of a million samples at the measured rate."),
    ("status", "ok, oom (out of memory), crashed, timeout, interrupted, refused (cannot run here)."),
)
