# The few commands a person types. Every other one is a playbook: .venv/bin/ansible-playbook playbooks/<verb>.yml
#
#   make deploy                     from a fresh checkout to a live, proved training run on this machine
#   make deploy ARGS='-i inventory/mine.yml'
#   make test  make lint            the same checks that CI runs
#   PYTHON=/usr/bin/python3.12 make deploy     the controller's interpreter (3.11 or newer)

SHELL := /bin/bash
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.PHONY: help deploy test lint lock wheelhouse clean
.PHONY: test-unit test-checks test-trainer test-lab test-proxmox molecule-default molecule-proxmox molecule-ssh-node

help:
	@sed -n 's/^#   \(make.*\)/  \1/p' Makefile
	@echo '  make lock                       re-make every lock and say what moved'
	@echo '  make wheelhouse PROFILE=cu128   every wheel of a lock in wheelhouse/, for boxes with no internet'
	@echo '  pieces of make test: test-unit test-checks test-trainer molecule-default test-lab molecule-proxmox molecule-ssh-node'

.PHONY: $(VENV)
$(VENV):
	@tools/venv.sh $(VENV) requirements/controller.lock

.PHONY: .venv-trainer
.venv-trainer: $(VENV)
	@$(BIN)/python tools/trainer_venv.py .venv-trainer

deploy: $(VENV)
	$(BIN)/ansible-playbook deploy.yml $(ARGS)

test: lint test-checks test-unit test-trainer molecule-default test-proxmox

lint: $(VENV)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/yamllint --strict .
	git ls-files '*.sh' .ci/run | xargs $(BIN)/shellcheck
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline

test-unit: $(VENV)
	$(PYTEST) tests/unit $(ARGS)

test-checks: $(VENV)
	$(PYTEST) tests/checks $(ARGS)

test-trainer: .venv-trainer
	PYTHONPATH=trainer .venv-trainer/bin/python -m pytest tests/trainer $(ARGS)

# All that needs the LXC host (tests/lab). Its root file systems are built once, and removed whatever happens.
test-proxmox: $(VENV)
	@if [ "$$(id -u)" != 0 ]; then echo 'LEFT OUT: containers need root. Run: sudo make test-proxmox'; exit 0; fi; \
	  trap '$(BIN)/python tests/lab/lab.py purge' EXIT; export DFLASH_LAB_KEEP=1; \
	  $(PYTEST) tests/lab && PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/molecule test -s proxmox && \
	  PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/molecule test -s ssh_node

test-lab: $(VENV)
	$(PYTEST) tests/lab $(ARGS)

molecule-default: $(VENV)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/molecule test -s default

molecule-proxmox: $(VENV)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/molecule test -s proxmox

molecule-ssh-node: $(VENV)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/molecule test -s ssh_node

lock: $(VENV)
	$(BIN)/python tools/lock.py $(ARGS)

PROFILE ?= cpu
wheelhouse: $(VENV)
	$(BIN)/python tools/wheelhouse.py $(PROFILE) $(ARGS)

clean:
	rm -rf .venv .venv-* .venv*.flock .cache .pytest_cache .mypy_cache .ruff_cache .ansible wheelhouse
