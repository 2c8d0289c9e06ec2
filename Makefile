# make demo, make test, make torture, make bench, make docs: each makes its own virtual environment first, if it is not there yet.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests start many processes: compiled modules are kept even where the environment asks for none.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test torture bench docs clean

demo: $(VENV)/installed
	$(BIN)/adagauss demo

test: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --dist worksteal

# A longer search for files that break a reader, and a run that fails at every single write.
torture: $(VENV)/installed
	ADAGAUSS_TORTURE=20 $(BIN)/python -m pytest -n auto tests/faults

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks

docs: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going --quiet docs build/docs
	@echo "Open build/docs/index.html"

clean:
	rm -rf $(VENV) build docs/api

# constraints.txt is what was tested. torch comes first and by itself: pip would otherwise choose a newer one,
# which brings gigabytes of CUDA.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4) and "adagauss needs Python 3.11.4 or newer; use make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[dev]'
	touch $@
