"""Every table and figure of the paper from one command: what is missing is run, what can be is shared or replayed."""

from adagauss.reproduce.cells import Workshop
from adagauss.reproduce.items import ITEMS, find_items
from adagauss.reproduce.plan import SCALES, Item, Row, Scale, Where

__all__ = ["ITEMS", "SCALES", "Item", "Row", "Scale", "Where", "Workshop", "find_items"]
