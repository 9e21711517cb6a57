// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace laconic::tools {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

Error file_error(const std::string& path, std::string_view doing) {
  return {Errc::invalid_argument, fmt::format("{}: {}: {}", path, doing, std::strerror(errno)), {}};
}

}  // namespace

Result<std::vector<uint8_t>> read_file(const std::string& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) return file_error(path, "cannot open");
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> piece(1 << 20);
  while (const std::size_t n = std::fread(piece.data(), 1, piece.size(), file.get())) {
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n));
  }
  if (std::ferror(file.get()) != 0) return file_error(path, "cannot read");
  return bytes;
}

Result<std::vector<float>> read_floats(const std::string& path) {
  const auto bytes = read_file(path);
  if (!bytes) return bytes.error();
  if (bytes->size() % sizeof(float) != 0) {
    return Error{
        Errc::invalid_argument,
        fmt::format("{}: {} bytes are not a whole number of float32 values", path, bytes->size()),
        "write raw little-endian float32, for example numpy's array.tofile"};
  }
  std::vector<float> values(bytes->size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes->data(), bytes->size());
  return values;
}

Result<void> write_file(const std::string& path, const void* data, uint64_t bytes) {
  const File file(std::fopen(path.c_str(), "wb"));
  if (!file) return file_error(path, "cannot create");
  if (std::fwrite(data, 1, bytes, file.get()) != bytes) return file_error(path, "cannot write");
  return {};
}

}  // namespace laconic::tools
