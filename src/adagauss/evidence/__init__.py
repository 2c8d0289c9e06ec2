"""What images that were left out have shown: how sure, how complete and how strange an answer is."""

from adagauss.evidence.evidence import ClassSummary, Evidence
from adagauss.evidence.typicality import Typicality, discriminants

__all__ = ["ClassSummary", "Evidence", "Typicality", "discriminants"]
