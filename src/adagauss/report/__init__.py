"""A report on runs: one HTML page that needs nothing else."""

from adagauss.report.writing import write_report

__all__ = ["write_report"]
