"""Pickles made to do harm, by name; run as a program, this reads them all, within a bound of memory."""

from __future__ import annotations

import resource
import struct
import sys
import tempfile
from pathlib import Path

MEMORY = 8 * 2**30
"""Address space of the reading process; libraries alone reserve some gigabytes."""


def forged_pointers(code: bytes = b"O8", flags: int = 0) -> bytes:
    """An array of objects whose dtype claims to hold plain bytes: numpy takes eight of ours for a pointer."""
    flag = b"K" + bytes([flags])
    state = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff" + flag + b"t"
    dtype = b"cnumpy\ndtype\nU" + bytes([len(code)]) + code + b"K\x00K\x01\x87R" + state + b"b"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    content = array + b"(K\x01K\x01\x85" + dtype + b"\x89U\x08AAAAAAAAtb"
    return b"\x80\x02}U\x04data" + content + b"s."


def array(shape: bytes, raw: bytes, code: bytes = b"u1") -> bytes:
    """An array of Python 2, its shape given as opcodes."""
    dtype = b"cnumpy\ndtype\nU" + bytes([len(code)]) + code + b"K\x00K\x01\x87R"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    content = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    return b"\x80\x02}U\x04data" + start + content + b"s."


def repeated(times: int = 100, length: int = 100_000) -> tuple[bytes, bytes]:
    """One text that is turned into bytes again and again, by a call and as the bytes of arrays."""
    text = b"\x80\x02X" + struct.pack("<I", length) + b"a" * length + b"q\x00"
    encode = b"c_codecs\nencode\nq\x01U\x06latin1q\x02" + b"h\x01h\x00h\x02\x86R" * times
    parts = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02cnumpy\ndtype\nU\x02u1\x85Rq\x03"
    one = b"h\x01h\x02K\x00\x85U\x01b\x87R(K\x01J" + struct.pack("<i", length) + b"\x85h\x03\x89h\x00tb"
    return text + encode + b".", text + parts + one * times + b"."


HOSTILE = {
    "bytes made of one text a hundred times": repeated()[0],
    "arrays made of one text a hundred times": repeated()[1],
    "an array of forged pointers": forged_pointers(),
    "forged pointers of another size": forged_pointers(b"O4"),
    "forged pointers with flags": forged_pointers(flags=0x3F),
    "a record type": forged_pointers(b"V8"),
    "a key nested a hundred thousand times": b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"K\x01s.",
    "a value nested a hundred thousand times": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a list within itself": b"\x80\x02}U\x04data]q\x00h\x00as.",
    "a memo of four thousand million places": b"\x80\x02Nr\xff\xff\xff\xff.",
    "a string of two gigabytes that is not there": b"\x80\x02T\xff\xff\xff\x7f.",
    "bytes of an exabyte that are not there": b"\x80\x05\x8e" + struct.pack("<Q", 2**60) + b".",
    "a bytearray of an exabyte that is not there": b"\x80\x05\x96" + struct.pack("<Q", 2**60) + b".",
    "a frame of an exabyte": b"\x80\x05\x95" + struct.pack("<Q", 2**60) + b"}.",
    "a number of a million digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "more values than bytes": array(b"K\xff\x85", b"abc"),
    "fewer values than bytes": array(b"K\x01\x85", b"abc"),
    "an axis that overflows": array(b"\x8a\x08" + bytes([0] * 7 + [64]) + b"K\x04\x86", b""),
    "a negative axis": array(b"J\xff\xff\xff\xff\x85", b""),
    "a hundred thousand axes": array(b"(" + b"K\x01" * 100_000 + b"t", b"a"),
    "nothing below a value": b"\x80\x02s.",
    "a state of a list": b"\x80\x02]}b.",
    "a call of a number": b"\x80\x02K\x01)R.",
    "a class": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "an instance of the oldest protocol": b"(ios\nsystem\n.",
    "a persistent name": b"Pabc\n.",
    "an extension": b"\x80\x02\x82\x01.",
}

HARMLESS = {
    "a value nested a hundred thousand times",
    "a list within itself",
    "a memo of four thousand million places",
    "a frame of an exabyte",
}
"""Those that are odd, but plain data."""


def read(content: bytes) -> str:
    """What reading a pickle as a dataset file ends in: the name of the error, or ``read``."""
    from adagauss.data.safe_pickle import read_plain_pickle
    from adagauss.errors import DataError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train"
        path.write_bytes(content)
        try:
            loaded = read_plain_pickle(path)
            # Where pointers were forged, it is the use of the array that ends the process.
            repr(loaded.get("data")) if isinstance(loaded, dict) else None
        except DataError:
            return "refused"
        return "read"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for case, pickled in HOSTILE.items():
        sys.stdout.write(f"{case}: {read(pickled)}\n")
        sys.stdout.flush()  # the last line tells which one ended the process
