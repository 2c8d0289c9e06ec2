"""Names from outside (classes, files, folders) as text that is harmless wherever it is shown."""

from __future__ import annotations

import unicodedata

HARMLESS_FORMATS = frozenset("\u200c\u200d")
"""Joiners: part of Persian words and of composed emoji, without effect on the text around them."""


def visible(name: object) -> str:
    r"""Text in which whatever is no character to read is written as an escape.

    Control characters and escape sequences, line ends, marks that turn the direction of text, and bytes that are no
    UTF-8 (a file name holds them as surrogates) would otherwise move the cursor, colour the rest of a terminal, or
    end the program with an encoding error.

    >>> visible("robin"), visible("a\x1b[31mb\n"), visible("caf\udce9"), visible("\u202egpj.exe")
    ('robin', 'a\\x1b[31mb\\n', 'caf\\xe9', '\\u202egpj.exe')
    """
    return "".join(map(_escaped, str(name)))


def clipped(name: object, width: int, *, keep_end: bool = False) -> str:
    """The visible name in at most ``width`` columns of a terminal; of a path the end is what tells it from others.

    >>> clipped("Black-footed Albatross", 10), clipped("photos/birds/7.jpg", 10, keep_end=True)
    ('Black-foo…', '…rds/7.jpg')
    """
    # A name of megabytes is cut before it is looked at, letter by letter; some letters take no column.
    text = str(name)
    shown = visible(text[-4 * width :] if keep_end else text[: 4 * width])
    if len(text) <= 4 * width and columns(shown) <= width:
        return shown
    letters = list(reversed(shown)) if keep_end else list(shown)
    kept, used = [], 1
    for letter in letters:
        used += columns(letter)
        if used > width:
            break
        kept.append(letter)
    return "…" + "".join(reversed(kept)) if keep_end else "".join(kept) + "…"


def columns(text: str) -> int:
    """The columns a terminal needs for a text: two for a wide letter, none for one that is put onto another.

    >>> columns("wren"), columns("鳥"), columns("e\u0301")
    (4, 2, 1)
    """
    return sum(_columns_of(letter) for letter in text)


def _columns_of(letter: str) -> int:
    if unicodedata.combining(letter) or letter in HARMLESS_FORMATS:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _escaped(letter: str) -> str:
    if 0xDC80 <= ord(letter) <= 0xDCFF:  # a byte of a file name that is no UTF-8
        return f"\\x{ord(letter) - 0xDC00:02x}"
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp") and letter not in HARMLESS_FORMATS
    return letter.encode("unicode_escape").decode("ascii") if hidden else letter
