"""The workload: BERT, its tasks and its training. Knows nothing of benchmarks or profilers."""
