#!/usr/bin/env bash
# Installs what tests need, builds release and runs all tests, then the sanitizer builds on the tests that
# touch memory and threads (CONTRIBUTING.md lists them). `scripts/test.sh --quick` leaves the sanitizers out.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=false
[[ "${1:-}" == "--quick" ]] && quick=true

echo "== packages"
scripts/install-packages.sh --with-tests
echo "== client packages"
tests/node/install.sh
tests/node/install.sh agent

echo "== format"
git ls-files '*.h' '*.c' '*.cc' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror

echo "== release: build and all tests"
cmake --preset release --log-level=WARNING
cmake --build --preset release
cmake --build --preset release --target all_verify_interface_header_sets
ctest --preset release

# Compiled with the compiler alone. Without a GPU the tests of the kernels run on the CPU (backend/cuda/emulation);
# those on a GPU are skipped (CONTRIBUTING.md, "CUDA").
nvcc_major=$( (nvcc --version 2>/dev/null || true) | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
if [[ "${nvcc_major:-0}" -ge 13 ]]; then
  echo "== cuda: build of the backend, its tests and the program"
  cmake --preset cuda --log-level=WARNING
  cmake --build --preset cuda --target backend_cuda_ops_test backend_cuda_emulated_test step_graphs_emulated_test async_emulated_test \
    step_graphs_test async_cuda_test fathom_backend_cuda_verify_interface_header_sets fathom golden_test nano_eval_test invariance_test
  build/cuda/bin/backend_cuda_ops_test --gtest_brief=1
  emulated() {
    GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=$1 build/cuda/bin/backend_cuda_emulated_test --gtest_brief=1
    build/cuda/bin/$2 --gtest_brief=1
  }
  emulated 0 async_emulated_test & first=$!
  emulated 1 step_graphs_emulated_test
  wait $first
  build/cuda/bin/golden_test --gtest_brief=1 --gtest_filter='*cuda'
else
  echo "== CUDA: NO nvcc 13 ON THIS MACHINE, backend/cuda IS NOT COMPILED"
fi
$quick && exit 0

# Memory: everything that reads files or client text, and the operations. Threads: pool, engine, server.
asan_tests=(base_test cache_test cache_alloc_test checkpoint_test tokenizer_test chat_test grammar_test
  backend_ops_test backend_cpu_test backend_plugin_test model_test engine_test device_test plugin_test replay_test load_test bench_test http_test server_test fuzz_corpus_test)
tsan_tests=(base_test backend_cpu_test engine_test replay_test http_test server_test)
for preset in asan tsan; do
  declare -n tests=${preset}_tests
  echo "== $preset: ${tests[*]}"
  cmake --preset $preset --log-level=WARNING
  cmake --build --preset $preset --target "${tests[@]}"
  # ctest knows programs that were not built, too; only those built here are run.
  ctest --preset $preset -R "^($(IFS='|'; echo "${tests[*]}"))\\."
done
