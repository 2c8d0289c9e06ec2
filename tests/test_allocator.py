"""Freed memory stays with the process, unless the user has chosen otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from adagauss.utils import process as allocator

FAULTS = """
import sys
from adagauss.utils.process import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("not on glibc")
import resource, torch
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(16 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def _faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=False)
    if "not on glibc" in done.stderr:
        pytest.skip("the C library is not glibc")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_tensors_of_the_same_size_reuse_their_pages() -> None:
    assert _faults("keep") < _faults("as it is") / 10


@pytest.mark.parametrize("name", allocator.OWN_CHOICE)
def test_a_choice_made_in_the_environment_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "something")
    monkeypatch.setattr("ctypes.CDLL", lambda _: pytest.fail("mallopt was called"))
    assert not allocator.keep_freed_memory()


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in allocator.OWN_CHOICE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(allocator, "_on_glibc", lambda: False)
    assert not allocator.keep_freed_memory()
