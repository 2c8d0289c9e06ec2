"""Figures and ablations of the paper, from run folders."""
