# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# Short names for what scripts/ and the CMake presets do; nothing is decided here.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
PRESET ?= release
TIER ?= all
SECONDS_EACH ?= 60

.DEFAULT_GOAL := help
.PHONY: help demo demo-aggregation build test users soak bench comparison cifar10 control tradeoff aggregation-learning thc engines sharded hsdp outer nodes frameworks fuzz mutants format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

demo:  ## train with and without compression over a slow link; MODEL= DATA= RATE= NETWORKS= WORKERS= SPECS= SEEDS= change it
	@scripts/bootstrap --required
	@scripts/bootstrap --python & python=$$!; \
	  scripts/build release laconic_c laconic_cli; built=$$?; wait $$python && exit $$built  # pip mostly waits
	@.venv/bin/python -m examples.demo.run \
	  $(if $(MODEL),--model "$(MODEL)") $(if $(DATA),--data "$(DATA)") \
	  $(if $(RATE),--rate "$(RATE)") $(if $(NETWORKS),--networks "$(NETWORKS)") $(if $(WORKERS),--workers "$(WORKERS)") \
	  $(if $(SPECS),--specs "$(SPECS)") $(if $(SEEDS),--seeds "$(SEEDS)")

demo-aggregation:  ## the same over aggregation servers, at 100 Mbit/s, loss 0 and 1 %, as root also --io xdp (five minutes); MODEL= NETWORKS= WORKERS= SPECS= SEEDS=, PUBLISH= a folder for the page
	@scripts/bootstrap --required
	@scripts/bootstrap --python & python=$$!; \
	  scripts/build release laconic_c laconic_cli; built=$$?; wait $$python && exit $$built
	@.venv/bin/python -m examples.demo.aggregation $(if $(MODEL),--model "$(MODEL)") $(if $(NETWORKS),--networks "$(NETWORKS)") \
	  $(if $(WORKERS),--workers "$(WORKERS)") $(if $(SPECS),--specs "$(SPECS)") $(if $(SEEDS),--seeds "$(SEEDS)") $(if $(PUBLISH),--publish "$(PUBLISH)")

build:  ## the library, the command, tests, benchmarks; PRESET= chooses another preset
	@scripts/bootstrap
	@scripts/build $(PRESET)

test:  ## everything that must hold before a change goes in; TIER=quick: the short version, TIER=weekly: all there is; DEADLINE=45m
	@scripts/test $(TIER)

soak:  ## aggregation servers at 1 % loss while servers and workers are killed; SOAK_SECONDS= (600) LOSS= change it
	@scripts/bootstrap
	@scripts/build release laconic_cli aggregation_rank
	@.venv/bin/python tests/aggregation/soak.py $(or $(SOAK_SECONDS),600) $(or $(LOSS),1%)

users:  ## programs of Hugging Face, Lightning and others, each with laconic; NAMES= chooses some (ten minutes)
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_launched
	@scripts/users $(NAMES)

bench:  ## measure every codec on this CPU into docs/results (5 minutes); QUICK=1: a minute's worth into out/bench
	@scripts/bootstrap
	@scripts/build release laconic_cli laconic_c $(basename $(notdir $(wildcard bench/*/*_bench.cc)))
	@.venv/bin/python -m bench.cpu.run $(if $(QUICK),--quick)

comparison:  ## every codec and exchange with five models on three networks into docs/results/comparison.md (three hours, in parts); PARTS= some
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli
	@.venv/bin/python -m bench.learning.comparison $(PARTS)

cifar10:  ## 3lc beside its paper's competitors on CIFAR-10, DATA=FILE, into docs/results/cifar10.md (five hours, in parts); PARTS= some
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli
	@.venv/bin/python -m bench.learning.cifar10 --data "$(DATA)" $(PARTS)

control:  ## laws in virtual time and in the network lab, into docs/results/control.md (some hours, in parts)
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli control_loop_bench
	@.venv/bin/python -m bench.control.controls

tradeoff:  ## dc2 beside five fixed settings where the rate moves by 100, into docs/results/tradeoff.md (five hours, in parts); PARTS= some
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli
	@.venv/bin/python -m bench.control.tradeoff $(PARTS)

aggregation-learning:  ## thc under loss, late workers, other widths, into docs/results/aggregation-learning.md (half an hour, in parts)
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli
	@.venv/bin/python -m bench.aggregation.aggregation_learning

thc:  ## time to the target of thc, over servers and without, with gpt and lstm into docs/results/thc.md (three hours, in parts); PARTS= some
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli
	@.venv/bin/python -m bench.aggregation.thc $(PARTS)

engines:  ## averaging over every engine against its own all-reduce into docs/results/engines.md (half an hour, in parts)
	@scripts/bootstrap
	@scripts/build release
	@.venv/bin/python -m bench.engines.engines

sharded:  ## an optimizer between push and pull against the mean of gradients into docs/results/sharded.md (two hours, in parts)
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli
	@.venv/bin/python -m bench.engines.sharded

hsdp:  ## sharded training between replicas against native HSDP into docs/results/hsdp.md (half an hour, in parts)
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli
	@.venv/bin/python -m bench.engines.hsdp

outer:  ## changes after the optimizer against gradients before it into docs/results/outer.md (three hours, in parts)
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli
	@.venv/bin/python -m bench.engines.outer

nodes:  ## two levels, inside a host and between hosts, against flat into docs/results/nodes.md (20 minutes, in parts)
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli
	@.venv/bin/python -m bench.engines.nodes

frameworks:  ## JAX and Keras beside PyTorch and beside loops by hand into docs/results/frameworks.md (10 minutes, in parts)
	@scripts/bootstrap
	@scripts/build release laconic_c laconic_cli laconic_gloo
	@scripts/users --install
	@.venv/bin/python -m bench.engines.frameworks

fuzz:  ## run every libFuzzer target for SECONDS_EACH= (60) seconds; needs clang
	@scripts/bootstrap
	@scripts/fuzz $(SECONDS_EACH)

mutants:  ## put each one-line fault of tests/mutants into a copy; every one has to fail a test (ten minutes)
	@scripts/bootstrap
	@scripts/mutants

format:  ## lay out all C++ sources with clang-format 14
	@scripts/bootstrap
	@scripts/format

clean:  ## remove build/ (the Python environment .venv stays)
	rm -rf build
