# Short commands for people. Everything else is a playbook: .venv/bin/ansible-playbook playbooks/<verb>.yml
#
#   make deploy                     deploy and start a training run on this machine, from a fresh checkout
#   make deploy ARGS='-i inventory/mine.yml'
#   make test  make lint            the checks that CI runs
#   PYTHON=/usr/bin/python3.12 make deploy     choose the controller's interpreter (3.11 or newer)

SHELL := /bin/bash
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.PHONY: help deploy test lint lock wheelhouse clean
.PHONY: test-unit test-checks test-trainer test-lab test-proxmox molecule-default molecule-proxmox molecule-ssh-node

help:
	@sed -n 's/^#   \(make.*\)/  \1/p' Makefile
	@echo '  make lock                       resolve every lockfile again and print the changes'
	@echo '  make wheelhouse PROFILE=cu128   download a lockfile's wheels into wheelhouse/ for boxes without internet'
	@echo '  parts of make test: test-unit test-checks test-trainer molecule-default test-lab molecule-proxmox molecule-ssh-node'

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
	git ls-files | xargs $(BIN)/codespell
	$(BIN)/python tools/check_language.py
	PYTHONPATH=plugins/module_utils:plugins/plugin_utils $(BIN)/lint-imports --cache-dir .cache/import-linter
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline

test-unit: $(VENV)
	$(PYTEST) tests/unit $(ARGS)

test-checks: $(VENV)
	$(PYTEST) tests/checks $(ARGS)

test-trainer: .venv-trainer
	PYTHONPATH=trainer .venv-trainer/bin/python -m pytest tests/trainer $(ARGS)

# Tests that need the LXC host of tests/lab. Its root file systems are built once and always removed at the end.
test-proxmox: $(VENV)
	@if [ "$$(id -u)" != 0 ]; then echo 'SKIPPED: containers need root. Run: sudo make test-proxmox'; exit 0; fi; \
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
