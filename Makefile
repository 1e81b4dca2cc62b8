# Two commands matter: `make demo` and `make test`. Everything else is a part of them.
SHELL := /bin/bash
# Ansible refuses to start where the locale is not of UTF-8.
export LC_ALL := C.UTF-8
VENV := .venv
BIN := $(VENV)/bin
INVENTORY ?= inventory/lab
LAB_PLAY := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-playbook -i inventory/lab
UNIT_TESTS := tests/unit tests/contract
LAB_TESTS := tests/lab tests/testinfra
USUAL := not benchmark and not faults and not long

LANE ?= 0.15.0 0.16.9
.PHONY: help demo test test-unit test-lab test-long test-lane test-faults lint lab-up lab-down verify fit rdma-lab clean setup

help:
	@echo "make demo       all set-up and the main job, on the lab of this machine (YES=1: do not ask)"
	@echo "make test       all set-up, linters and all tests, the lab's included"
	@echo "make test-unit  set-up and the tests that need neither the lab nor root"
	@echo "make test-faults  every fault of docs/faults.md in the lab, several times each; make test-long: repetitions (both: an hour or more)"
	@echo "make test-lane  the trainer's numeric tests with LANE=\"megatron-core deepspeed\" of other versions (minutes)"
	@echo "make lint       ruff, mypy, yamllint, ansible-lint"
	@echo "make lab-up     only the nodes; make lab-down removes them and every side effect"
	@echo "make verify     testinfra against INVENTORY=inventory/..."
	@echo "make fit        fit the planner's constants again from the published measurements"
	@echo "make rdma-lab   two emulated machines with Soft-RoCE carry traffic over the predicted devices (root, minutes)"
	@echo "make clean      lab-down, then remove the environment, the caches and the state"

setup:
	scripts/setup all

demo:
	scripts/demo

test: setup
	scripts/system-packages test
	scripts/test-all "$(USUAL)" $(LAB_TESTS) $(UNIT_TESTS)

test-unit: setup
	$(BIN)/python -m pytest -n auto -m "not multiprocess and not lab and $(USUAL)" $(UNIT_TESTS)

test-lab: setup
	scripts/system-packages test
	$(BIN)/python -m pytest -m "$(USUAL)" $(LAB_TESTS)

test-long: setup
	scripts/system-packages test
	$(BIN)/python -m pytest -m long tests

test-lane: setup
	scripts/lane $(LANE)

test-faults: setup
	scripts/system-packages test
	$(BIN)/python -m pytest -m faults tests; code=$$?; $(BIN)/python scripts/faults_page.py; exit $$code

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/yamllint .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline -q

lab-up:
	scripts/setup controller
	$(LAB_PLAY) playbooks/lab_up.yml

lab-down:
	scripts/setup controller
	$(LAB_PLAY) playbooks/lab_down.yml

verify: setup
	$(BIN)/python -m pytest tests/testinfra --inventory $(INVENTORY)

fit: setup
	scripts/fit

rdma-lab:
	scripts/setup controller
	scripts/system-packages rdma-lab
	PYTHONPATH=plugins/module_utils $(BIN)/python scripts/rdma_lab.py --record docs/rdma-lab.md

clean:
	if [ -x $(BIN)/ansible-playbook ] && [ -d .state/lab ]; then \
	  $(LAB_PLAY) playbooks/lab_down.yml -e lab_node_purge=true; fi
	rm -rf $(VENV) .state .cache .ansible .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
