# Two commands matter: `make demo` and `make test`. Everything else is a part of them.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python

.PHONY: test test-unit lint
test test-unit:
	scripts/setup
	$(PY) -m pytest tests/unit
lint:
	scripts/setup
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy && $(VENV)/bin/yamllint . && $(VENV)/bin/ansible-lint
