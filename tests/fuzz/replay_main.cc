// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Stands in for libFuzzer: runs the fuzz target on every file of the given folders and on a few
// inputs that need no file (empty, one byte of each value), so that each compiler and each
// sanitizer replays what fuzzing once found.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

Bytes read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

// The input lives in an allocation of exactly its size, so that a sanitizer sees the first byte
// read beyond it.
void run(const Bytes& bytes) {
  const Bytes exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

std::size_t replay(const fs::path& path) {
  if (!fs::exists(path)) return 0;
  if (!fs::is_directory(path)) {
    run(read_file(path));
    return 1;
  }
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    run(read_file(entry.path()));
    ++files;
  }
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  run({});
  for (unsigned value = 0; value < 256; ++value) run({static_cast<std::uint8_t>(value)});
  std::size_t files = 0;
  for (int i = 1; i < argc; ++i) files += replay(argv[i]);
  std::printf("replayed %zu files and 257 built-in inputs\n", files);
  return 0;
}
