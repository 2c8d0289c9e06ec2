"""Distributed training with the same results as a single process."""
