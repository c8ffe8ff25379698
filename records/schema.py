"""The columns of the tables in a run directory: records.trial reads and writes them. Standard library only."""

# steps-<rank>.csv, one row per optimizer step of one rank. Times are this rank's; an empty field is "not measured".
STEP_COLUMNS: dict[str, type] = {
    "step": int,
    "start_ns": int,  # Unix time, ns
    "step_time_ms": float,
    "data_wait_ms": float,
    "forward_ms": float,
    "backward_ms": float,
    "communication_ms": float,  # exposed: from the last gradient bucket being ready to the end of backward
    "optimizer_ms": float,
    "samples": int,
    "real_tokens": int,
    "padded_tokens": int,
    "predicted_positions": int,
    "model_flops": float,
    "loss": float,
    "learning_rate": float,
}

# telemetry-<node>.csv: long form, one row per reading, so that any machine's sensors fit.
# Quantities: cpu_percent, foreign_cpu_percent (used by other processes), memory_used_bytes, load_average,
# gpu_utilization_percent, gpu_memory_utilization_percent (of the time, not of the bytes), gpu_memory_used_bytes,
# power_watts, energy_joules (a counter), sm_clock_mhz, memory_clock_mhz, temperature_celsius, throttle_reasons (NVML's
# bit mask), nvlink_rx_bytes and nvlink_tx_bytes (counters, all links of a GPU), pcie_rx_bytes_per_second and
# pcie_tx_bytes_per_second (means over 20 ms, read once a second).
TELEMETRY_COLUMNS: dict[str, type] = {"time_ns": int, "device": str, "quantity": str, "value": float}

# The fields of a trial that name a measurement, in the order in which every table shows them; the device stands apart.
SHAPE_COLUMNS = (
    "task",
    "implementation",
    "strategy",
    "preset",
    "precision",
    "seq_len",
    "micro_batch_size",
    "grad_accum_steps",
    "world_size",
)

# results.csv, one row per trial; the first columns are a contract, measurement columns follow in this order.
RESULT_COLUMNS = (
    "trial_id",
    "status",
    *SHAPE_COLUMNS,
    "samples_per_second",
    "tokens_per_second",
    "step_time_ms",
    "step_time_ms_low",
    "step_time_ms_high",
    "mfu",
    "peak_memory_bytes",
    "round",
    "device",
    "kind",
    "padded_tokens_per_second",
    "padding_efficiency",
    "step_time_ms_p5",
    "step_time_ms_p95",
    "step_time_ms_mean",
    "step_time_ms_std",
    "steps_measured",
    "steps_warmup",
    "data_wait_ms",
    "forward_ms",
    "backward_ms",
    "communication_ms",
    "optimizer_ms",
    "model_flops_per_second",
    "measured_peak_flops",
    "rank_skew",
    "energy_joules",
    "joules_per_sample",
    "cost_per_million_samples",
    "shards_read_samples_per_second",
    "strategy_options",
    "task_options",
    "nodes",
    "data",
    "reason",
)
