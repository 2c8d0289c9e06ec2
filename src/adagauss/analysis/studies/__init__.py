"""Figures about runs, one file per figure: add one by adding a file."""

from adagauss.analysis.studies.base import Drawing, Groups, Study, find_study, register_study, studies
from adagauss.analysis.studies.draw import Drawn, analyse

__all__ = ["Drawing", "Drawn", "Groups", "Study", "analyse", "find_study", "register_study", "studies"]
