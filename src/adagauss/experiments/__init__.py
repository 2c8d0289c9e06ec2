"""Run a method on a stream of tasks: configuration, run folders, metrics, comparisons, tuning."""
