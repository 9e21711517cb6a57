# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# The sections of scripts/test: section_NAME, and about_NAME in a line. scripts/proof.py runs each in a shell of its own, which
# stops at the first error. TEST_TIER is `weekly` where a section has to run in whole, `change` otherwise.
readonly skip=3  # exit status of a section that has nothing to run on here; its last line says why
jobs=${JOBS:-$(nproc)}
# Tests of processes mostly wait for each other: twice the number of cores. Those of one file share the processes that they start.
readonly in_parallel=(-n "$((2 * jobs))" --dist loadfile --no-loadscope-reorder)  # conftest.py has the order
source scripts/ccache.sh  # also for what tests compile by themselves
weekly() { [[ ${TEST_TIER:-change} == weekly ]]; }

# How many interpreters tests of the section `python` may start that import torch: 1.4 s each. Where the test is not about starting one,
# launches.py has forks. 32 do where the lab has its hosts; what a machine lacks changes the number.
readonly torch_imports=50

# Tests that are repeated without NumPy: a tenth in turn, which the commit chooses, and all of them weekly. A tenth is too
# little for that number of processes: each imports torch.
in_turn() {
  if ! weekly; then
    echo "-n $jobs --tenth=$(git rev-parse -q --verify HEAD 2>/dev/null || cat python/tests/*.py | sha1sum | cut -d ' ' -f 1)"
  fi
}

about_layers="who includes whom; no class grows beyond its budget; subjects of commits"
section_layers() { scripts/check_layers && scripts/check_classes && scripts/check_commits; }

about_format="clang-format 14"
section_format() { scripts/format --check; }

about_release="optimised build; the tests whose answers depend on it, and examples; weekly all tests"
section_release() {
  if weekly; then
    scripts/build release
    ctest --preset release -j "$jobs" -LE scalar
  else
    scripts/build release laconic_optimised_tests laconic_examples
    ctest --preset release -j "$jobs" -L 'optimised|example'
  fi
}

about_python="the Python package, the demo's parts, the scripts"
section_python() {
  scripts/build release laconic_c laconic_launched laconic_fake_nccl laconic_fake_nccl_old $(has_command_sources && echo laconic_cli)
  .venv/bin/python -m pytest -q "${in_parallel[@]}" --torch-imports="$torch_imports" $(! weekly || echo --record-durations)
}

# Training, resuming and starting; what waits for a clock, and what no user of PyTorch touches, runs in other sections.
of_nonumpy=(python/tests/test_without_numpy.py python/tests/test_doctor.py::test_two_processes_exchange
            python/tests/test_resume.py::test_{resume_is_bit_identical_at_three_ranks,saved_state_is_plain_data}
            python/tests/test_warmup.py
            python/tests/test_ddp.py::test_{replicas_are_bit_identical,all_modes_train,none_equals_plain_ddp,stats_and_explain_are_complete}
            python/tests/test_run.py::test_{script_finds_what_it_expects,subclasses_and_several_models_attach})
about_nonumpy="the Python package with what laconic[torch] brings, which is torch without NumPy"
section_nonumpy() {
  local venv=build/venv-nonumpy
  scripts/build release laconic_c
  .venv/bin/python tests/install/exact_env.py "$venv" "laconic[torch]" pytest pytest-timeout pytest-xdist
  "$venv/bin/python" -c 'import importlib.util as u; assert u.find_spec("torch") and not u.find_spec("numpy"), "NumPy is here"'
  "$venv/bin/python" -m pytest -q "${in_parallel[@]}" $(in_turn) "${of_nonumpy[@]}"
}

about_asan="AddressSanitizer and UndefinedBehaviorSanitizer, by clang; every unit test, replay of the fuzz corpora"
section_asan() {
  local preset=asan
  scripts/clang >/dev/null || { echo "no clang with libFuzzer here: by g++ instead"; preset=asan-gcc; }
  scripts/build "$preset" laconic_tests
  ctest --preset "$preset" -j "$jobs" -LE example
}

about_tsan="ThreadSanitizer: thread pool, engines, ranks as threads"
section_tsan() {
  CMAKE_ARGS="-DLACONIC_WEEKLY=$(weekly && echo ON || echo OFF)" scripts/build tsan laconic_threaded_tests
  # g++ 12's ThreadSanitizer cannot place its shadow where newer kernels randomise addresses by 32 bits.
  local fixed_addresses=(setarch "$(uname -m)" -R)
  "${fixed_addresses[@]}" true 2>/dev/null || fixed_addresses=()
  "${fixed_addresses[@]}" ctest --preset tsan -j "$jobs" -L threads
}

about_scalar="without Highway: what its absence replaces, and the bytes that must stay"
section_scalar() {
  if weekly; then  # a library that was configured so
    scripts/build scalar laconic_tests
    ctest --preset scalar -j "$jobs" -LE example
  else
    scripts/build release laconic_scalar_tests
    ctest --preset release -j "$jobs" -L scalar
  fi
}

about_fuzz="every fuzz target for a few seconds under clang"
section_fuzz() { scripts/fuzz "${FUZZ_SECONDS:-$(weekly && echo 60 || echo 3)}"; }

about_install="installed package, the library inside another project, the unpacked source archive, the wheel alone and with torch, README there, notices, exported symbols"
section_install() { tests/install/run; }

about_cuda="the device's kernels, compiled by nvcc for sm_90; weekly for every architecture"
section_cuda() { scripts/kernels sm_90 $(! weekly || echo sm_80 sm_86 sm_100 sm_120); }

has_command_sources() { [[ -e tools/main.cc ]]; }

# ---- of the weekly tier alone ----

about_asan_gcc="AddressSanitizer and UndefinedBehaviorSanitizer of g++"
section_asan_gcc() {
  scripts/build asan-gcc laconic_tests
  ctest --preset asan-gcc -j "$jobs" -LE example
}

about_paths="a checkout whose path has a space and a letter that is not ASCII"
section_paths() {
  local python=$PWD/.venv/bin/python work
  work=$(mktemp -d)
  trap "rm -rf '$work'" EXIT  # which runs when the function is over, and its variables with it
  git clone -q . "$work/été 1/laconic"
  cd "$work/été 1/laconic"
  export CCACHE_BASEDIR=$PWD PYTHONPATH=$PWD/python
  scripts/build release laconic_c laconic_cli laconic_launched test_base
  ctest --preset release -R '^test_base$'
  "$python" -m pytest -q "${in_parallel[@]}" python/tests/test_{session,register,run}.py tests/tools/test_{cli,replay,rules_file}.py \
    lab/tests/test_lab_run.py
}

about_soak="make soak"
section_soak() { make soak; }

about_mutants="one-line faults, each of which a test has to notice"
section_mutants() { scripts/mutants && scripts/mutants --all-killers --seventh; }
