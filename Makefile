# fedcore: `make` lists the targets. `make run` and `make test` do all set-up on a fresh clone.
PYTHON ?= python3
RANKS  ?= 8
CONFIG ?= default
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BASE   := $(VENV)/.installed
# set here, so that torchrun does not print its advice about it; see `threads` in the configuration
export OMP_NUM_THREADS ?= 1

# tests that need a part which this machine lacks are deselected, and it is said
PROMETHEUS := $(and $(shell command -v prometheus),$(shell command -v promtool),$(shell command -v prometheus-alertmanager),$(shell command -v amtool))
ROOT       := $(filter 0,$(shell id -u))
DESELECT   := not gpu and not slurm$(if $(PROMETHEUS),, and not prometheus)$(if $(ROOT),, and not root)

.DEFAULT_GOAL := help
.PHONY: help setup run smoke test check coverage long law procs cluster chaos golden golden-update gpu format bench bench-accuracy bench-scale bench-gpu bench-lm bench-scrape bench-checkpoint bench-loader dash clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

$(BASE): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $(BASE) $@

setup: $(READY) ## virtual environment with fedcore and its tools in .venv

run: $(BASE) ## the main job: RANKS=8 processes train CONFIG=default (real digits, v14)
	$(BIN)/torchrun --standalone --nproc_per_node=$(RANKS) launcher/main.py --config $(CONFIG) $(ARGS)

smoke: ## a small federation in half a minute, 2 processes
	@$(MAKE) --no-print-directory run RANKS=2 CONFIG=smoke

test: $(READY) ## the test suite: all that needs no other servers, and no minutes for one test
	@test -n "$(PROMETHEUS)" || echo "prometheus and prometheus-alertmanager are not both installed: the tests of alert rules are left out"
	@test -n "$(ROOT)" || echo "not root: the full-disk test, which mounts a small disk, is left out"
	$(BIN)/python -m pytest --numprocesses=auto -m "$(DESELECT) and not procs and not long" $(ARGS)
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile -m "$(DESELECT) and procs and not prometheus and not long" $(ARGS)

check: $(READY) ## the gate before a commit, in two minutes: format, lint, types, floors, unit and law tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses=auto -m "$(DESELECT) and not procs and not long and not broad"

long: $(READY) ## tests that take about a minute each
	$(BIN)/python -m pytest --numprocesses=2 -m "$(DESELECT) and long" $(ARGS)

coverage: $(READY) ## which lines no test runs: a table by package, and runs/coverage (an hour; docs/coverage.md)
	rm -f .coverage .coverage.*
	-$(BIN)/python -m coverage run -m pytest -m "$(DESELECT) and not procs" $(ARGS)
	-$(BIN)/python -m coverage run -m pytest -m "$(DESELECT) and procs" $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage html --quiet --directory runs/coverage
	$(BIN)/python -m tests.coverage_table

law: $(READY) ## closed forms, lanes, partitions, resume
	$(BIN)/python -m pytest tests/law

procs: $(READY) ## tests with real processes
	$(BIN)/python -m pytest -m "procs and $(DESELECT)"

cluster: $(READY) ## tests that start servers: Prometheus and Alertmanager, a Slurm cluster (root)
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile -m "procs and prometheus" tests/deploy $(ARGS)
	$(BIN)/python -m pytest --numprocesses=2 -m slurm tests/slurm $(ARGS)

chaos: $(READY) ## 50 random faults in one long tiny training (FAULTS=50 SEED=1)
	$(BIN)/python -m tests.procs.chaos --faults $(or $(FAULTS),50) --seed $(or $(SEED),1)

golden: $(READY) ## has training changed? 30 steps of every algorithm in fp64
	$(BIN)/python -m pytest tests/golden

golden-update: $(READY) ## write the golden curves anew and print what changed
	$(BIN)/python -m tests.golden.curves
	$(BIN)/python -m tests.golden.lm_curves

gpu: $(READY) ## tests that need CUDA devices
	$(BIN)/python -m pytest -m gpu

format: $(READY) ## format and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## rounds, lanes, collectives, loading, evaluation, many clients: under 10 minutes, into docs/numbers.md
	PYTHONPATH=. $(BIN)/python bench/round.py --variants auto --blocks 4
	PYTHONPATH=. $(BIN)/python bench/step.py --blocks 3
	PYTHONPATH=. $(BIN)/python bench/overheads.py --blocks 3
	PYTHONPATH=. $(BIN)/python bench/lanes.py --batches 8 32 --widths 1 2 4 8 --blocks 3 --samples 512
	PYTHONPATH=. $(BIN)/python bench/collectives.py --ranks 1 2 4 --repeats 5
	PYTHONPATH=. $(BIN)/python bench/loader.py --samples 5000 --blocks 3
	PYTHONPATH=. $(BIN)/python bench/evaluate.py --repeats 5
	PYTHONPATH=. $(BIN)/python bench/scale.py --kinds fedavg v14 --clients 10 100 1000 --rounds 1
	PYTHONPATH=. $(BIN)/python bench/write_numbers.py --take

bench-accuracy: $(READY) ## v14 against v4, fedavg and central training, three seeds each
	$(BIN)/python bench/baselines.py

bench-scale: $(READY) ## the same samples over 100 ... 10,000 clients on 1 ... 8 ranks: time and memory of a round
	PYTHONPATH=. $(BIN)/python bench/scale.py --clients 100 1000 10000 --ranks 2 --out runs/bench/scale_large.json
	PYTHONPATH=. $(BIN)/python bench/scale.py --kinds fedavg --clients 1000 --ranks 1 2 4 8 --out runs/bench/scale_ranks.json

bench-gpu: $(READY) ## on one GPU: tests, lanes, a whole run of v14, in under 6 minutes
	bash bench/gpu.sh

bench-lm: $(READY) ## language models: our step beside a minimal GPT's, ZeRO beside plain DDP
	PYTHONPATH=. $(BIN)/python bench/lm_step.py
	PYTHONPATH=. $(BIN)/torchrun --standalone --nproc_per_node=2 bench/lm_engines.py

dash: $(READY) ## write Grafana's dashboards from deploy/grafana/*.py
	PYTHONPATH=. $(BIN)/python -m deploy.grafana.build

bench-scrape: $(READY) ## what being watched by Prometheus costs a training step, attacked or not
	PYTHONPATH=. $(BIN)/python bench/scrape.py --blocks 12 --length 3

bench-checkpoint: $(READY) ## what checkpoints cost training, written meanwhile or waited for
	PYTHONPATH=. $(BIN)/python bench/checkpoint.py
	PYTHONPATH=. $(BIN)/python bench/checkpoint.py --model resnet18 --clients 4 --per-round 1 --epochs 1 --blocks 4 --out runs/bench/checkpoint_large.json

bench-loader: $(READY) ## how fast samples are read, written and verified; a million of them over 10,000 clients
	PYTHONPATH=. $(BIN)/python bench/loader.py
	PYTHONPATH=. $(BIN)/python bench/many_clients.py

clean: ## remove runs, shards and caches (keeps .venv)
	rm -rf runs data_shards/store .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
