PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
STAMP := $(VENV)/.cotune-installed

ON_RAY := tests/ray_tune tests/engines/test_ray.py tests/test_run_cluster.py

# The tests start hundreds of processes that import cotune: what one has compiled is for all.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-on-ray test-others slow oldest bench gpu gpu-here pretend-gpu clean

help:
	@echo "make demo    tune a small model on the digits data set, on whatever this machine has"
	@echo "make test    lint, type check, tests"
	@echo "make slow    the tests left out of make test: clusters that grow and shrink"
	@echo "make oldest  the tests of Ray and Optuna on the oldest versions that work"
	@echo "make bench   overheads, makespan, front doors"
	@echo "make gpu     on a machine with a GPU: the tests that need one, then every figure (docs/gpu.md)"
	@echo "make gpu-here  the same with the packages that \$$(PYTHON) has, where nothing can be installed"
	@echo "make pretend-gpu  without a GPU: most of those tests, with torch's CUDA build on a GPU that is not there"
	@echo "make clean   remove the environment and the caches"
	@echo "PYTHON=$(PYTHON) and VENV=$(VENV) can be set on the command line."

demo: $(STAMP)
	$(BIN)/python examples/digits.py

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict cotune
	@echo "tests on a Ray cluster and all others, side by side: each says how it went when it is done"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-on-ray test-others

# Much of a test is waiting for processes to start.
test-on-ray: $(STAMP)
	$(BIN)/python -m pytest $(ON_RAY)

test-others: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ON_RAY:%=--ignore=%)

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# Ray 2.44 leaves sockets and processes to be collected, which is no fault of ours.
oldest:
	"$(PYTHON)" -m venv "$(VENV)-oldest"
	"$(VENV)-oldest/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt \
	    -e '.[dev,torch]'
	"$(VENV)-oldest/bin/python" -m pytest $(ON_RAY) \
	    tests/test_optuna_study.py tests/test_optuna_faults.py tests/search \
	    -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

bench: $(STAMP)
	$(BIN)/python bench/overheads.py
	$(BIN)/python bench/makespan.py
	$(BIN)/python bench/front_doors.py

# Under 9 minutes in all. The figures are taken even if a test fails, and what failed fails the command.
gpu: $(STAMP)
	$(BIN)/python bench/gpu.py --tests

gpu-here:
	"$(PYTHON)" bench/gpu.py --tests

# The stamp goes first and comes back last, so a failed or interrupted install is done again. By its own name, for another
# file that is given as STAMP must not go.
$(VENV)/.cotune-installed: pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "error: no '$(PYTHON)' found. Install Python 3.11 or newer, or say where it is:" \
	         "make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c '' || { \
	    echo "error: '$(PYTHON)' does not run, see above. Say where Python 3.11 or newer is:" \
	         "make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: cotune needs Python 3.11 or newer, '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1)." \
	         "Say where a newer one is: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@rm -f "$@"
	@"$(PYTHON)" -m venv "$(VENV)" || { \
	    echo "error: '$(PYTHON) -m venv' failed. On Debian and Ubuntu the venv module is a package of its own:" \
	         "apt-get install python3-venv" >&2; exit 1; }
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,torch]' || { \
	    echo "error: the install failed, see above. It needs a package index that pip can reach;" \
	         "run the same make command again to retry." >&2; exit 1; }
	@touch "$@"

# torch's own CUDA build, which pip gets from PyPI, on a device that has memory, streams and errors, and does not compute.
pretend-gpu:
	"$(PYTHON)" -m venv "$(VENV)-pretend-gpu"
	"$(VENV)-pretend-gpu/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,torch]'
	"$(VENV)-pretend-gpu/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps 'nvidia-cuda-crt==13.0.*'
	"$(VENV)-pretend-gpu/bin/python" tests/pretend_gpu/run.py

clean:
	rm -rf "$(VENV)" "$(VENV)-oldest" "$(VENV)-pretend-gpu" .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
