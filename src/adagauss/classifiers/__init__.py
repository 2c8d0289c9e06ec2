"""Classifiers from running sums."""
