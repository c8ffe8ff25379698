"""The `bertbench` command. The only place that prints or exits."""
