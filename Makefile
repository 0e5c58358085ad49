PYTHON ?= python3

.PHONY: demo test
demo: .venv/installed
	.venv/bin/fieldcraft run autocoa-mini

test: .venv/installed-dev
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	OMP_NUM_THREADS=1 .venv/bin/pytest -n logical --maxprocesses 8 --dist worksteal

.venv/installed: pyproject.toml scripts/install.py
	@$(PYTHON) scripts/install.py
	@touch $@

.venv/installed-dev: pyproject.toml scripts/install.py
	@$(PYTHON) scripts/install.py --dev
	@touch $@ .venv/installed
