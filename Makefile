PYTHON ?= python3

.PHONY: demo real test test-long

# The folders are named, because runs and exports of a user may be in the same place.
SOURCES = src tests bench scripts examples docs deploy *.md
PYTEST = OMP_NUM_THREADS=1 .venv/bin/pytest -n auto --dist worksteal

demo: .venv/installed
	.venv/bin/fieldcraft run autocoa-mini

real: .venv/installed-real
	.venv/bin/python scripts/real.py

test: .venv/installed-dev
	.venv/bin/ruff check --no-cache $(SOURCES)
	.venv/bin/ruff format --check $(SOURCES)
	.venv/bin/mypy
	$(PYTEST)

test-long: .venv/installed-dev
	$(PYTEST) -m 'long and not slow and not gpu'

.venv/installed: pyproject.toml scripts/install.py
	@$(PYTHON) scripts/install.py
	@touch $@

.venv/installed-real: pyproject.toml scripts/install.py
	@$(PYTHON) scripts/install.py --real
	@touch $@ .venv/installed

.venv/installed-dev: pyproject.toml scripts/install.py
	@$(PYTHON) scripts/install.py --dev
	@touch $@ .venv/installed
