"""Sums over groups of features."""
