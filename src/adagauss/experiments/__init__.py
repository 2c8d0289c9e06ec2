"""Configurations, protocols, runs and the reproduction of the paper."""
