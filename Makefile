# make demo | lint | test | torture | bench | size | docs. Each creates the virtual environment first if it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests start many processes: keep compiled modules even if the environment disables them.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo lint test torture bench size docs clean

demo: $(VENV)/installed
	$(BIN)/adagauss compare --methods adagauss,finetune --dataset digits --tasks 5 --out runs/demo

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --noconftest tests/test_architecture.py

test: lint
	$(BIN)/python -m pytest -n auto --dist worksteal

# All tests, also the slow ones marked `nightly`, a longer search for files that break a reader, and a run that fails at
# every single write. For half an hour (ADAGAUSS_FAULT_SECONDS), clients change a server whose process and disk fail.
torture: $(VENV)/installed
	ADAGAUSS_NIGHTLY=1 ADAGAUSS_TORTURE=20 ADAGAUSS_FAULT_SECONDS=$${ADAGAUSS_FAULT_SECONDS:-1800} $(BIN)/python -m pytest -n auto --dist worksteal

# Ratios of run times to baselines; no test asserts a time.
bench: $(VENV)/installed
	$(BIN)/python -m benchmarks

# Lines, files, commands, words: the table of docs/architecture.md.
size: $(VENV)/installed
	$(BIN)/python -m benchmarks.size

docs: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going --quiet docs build/docs
	@echo "Open build/docs/index.html"

clean:
	rm -rf $(VENV) build docs/results

# constraints.txt lists the tested versions. torch is installed first, so that pip does not choose a newer one with
# gigabytes of CUDA.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4) and "adagauss needs Python 3.11.4 or newer; use make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[dev]'
	touch $@
