# From a bare clone with Python >= 3.11: every target first makes its own environment in .venv, from constraints.txt.
# `make demo` installs what the package itself needs, without torch; the other targets add what developers need.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
BASE := $(VENV)/.base
DOCS := $(VENV)/.docs
READY := $(VENV)/.ready
# All but gpu, which no test needs.
EXTRAS := recurrent,search,serve,agents,answers,lab,ray,qdrant,langchain,llama-index,haystack
DEMO := runs/demo

.PHONY: demo test test-all check check-base fix dist image bench bench-check docs pocket clean

demo: $(BASE)
	mkdir -p $(DEMO)
	cp -R examples/files/. $(DEMO)
	$(BIN)/python examples/python_reference.py $(DEMO)/python-reference.txt
	cd $(DEMO) && "$(abspath $(BIN))/runnel" find "What does deleting a name do?" python-reference.txt
	$(BIN)/python examples/stream_embedding.py $(DEMO)/python-reference.txt

# Two processes at a time with a thread each: most tests are too small for more. Files are handed out in the order of tests/conftest.py.
# glibc fills memory that is allocated or freed (MALLOC_PERTURB_), so that a use of freed memory is seen.
# Bytecode is kept even where the environment says otherwise: hundreds of tests start a process that imports the package.
TEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MALLOC_PERTURB_=165 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(READY)
	$(TEST)

# With the tests that start servers, browsers and many processes, and those that train for long.
test-all: $(READY)
	$(TEST) -m "not release and not network"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Whether the package's own dependencies are enough: an environment that has nothing else, not even torch.
check-base:
	@$(MAKE) --no-print-directory VENV=build/base-venv build/base-venv/.base
	! build/base-venv/bin/python -c "import torch" 2> /dev/null
	rm -rf build/base && cp -R examples/files build/base
	cd build/base && ../base-venv/bin/runnel find "what does deleting a name do" texts.txt
	cd build/base && ../base-venv/bin/runnel embed texts.txt --to vectors.npy
	cd build/base && ../base-venv/bin/runnel rerank "what does deleting a name do" texts.txt
	cd build/base && ../base-venv/bin/runnel info pocket
	cd build/base && ../base-venv/bin/runnel doctor

fix: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The wheel and the source distribution, in dist; the same bytes for the same sources.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build

# Builds the container image and asks its server; skipped where docker does not run.
image: $(READY)
	$(BIN)/python -m pytest -m release tests/test_distribution.py -k container_image

# Measures for about twenty minutes on two quiet cores and writes docs/performance.md, its json and its plots, if nothing failed.
bench: $(READY)
	$(BIN)/python -m benchmarks page docs

# Measures every bar of speed and memory that this machine can show; fails if one is lost.
bench-check: $(READY)
	$(BIN)/python -m benchmarks check

# The pages of docs/ as a site in build/site, with the reference of commands and of Python; any warning is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Fits the heads of pocket again, for an hour: make pocket DATA=folder. tools/train_pocket says what the folder holds.
pocket: $(READY)
	test -n "$(DATA)" || { echo "say where the data is: make pocket DATA=folder"; exit 2; }
	for step in encode fit export measure; do $(BIN)/python -m tools.train_pocket $$step --data "$(DATA)" || exit 1; done

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"runnel needs Python >= 3.11, this is {sys.version}"'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing runnel into $(VENV)"
	@$(PIP) -e .
	@touch $@

$(DOCS): $(BASE)
	@echo "installing what builds the docs into $(VENV)"
	@$(PIP) 'pip>=25.1' # knows groups
	@$(PIP) --group docs
	@touch $@

$(READY): $(BASE)
	@echo "installing what tests and training need into $(VENV)"
	@$(PIP) 'pip>=25.1'
	@$(PIP) -e '.[$(EXTRAS)]' --group dev
	@touch $@

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .ruff_cache .mypy_cache
