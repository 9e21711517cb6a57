// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "npy.h"

namespace laconic::tools {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

Error file_error(const std::string& path, std::string_view doing) {
  return {Errc::invalid_argument, fmt::format("{}: {}: {}", path, doing, std::strerror(errno)), {}};
}

Error refused(const std::string& path, std::string_view what) {
  return {Errc::invalid_argument, fmt::format("{} {}", path, what),
          "give raw little-endian float32, or numpy.save of a float32 array of 1 or 2 dimensions"};
}

Result<std::vector<float>> floats_of(const std::string& path, const std::vector<uint8_t>& bytes) {
  if (bytes.size() % sizeof(float) != 0) {
    return Error{
        Errc::invalid_argument,
        fmt::format("{}: {} bytes are not a whole number of float32 values", path, bytes.size()),
        "write raw little-endian float32, for example numpy's array.tofile"};
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Result<FileTensor> npy_tensor(const std::string& path, const std::vector<uint8_t>& bytes) {
  auto header = parse_npy(bytes);
  if (!header) return refused(path, header.error().message);
  const auto& shape = header->shape;
  if (header->descr != "<f4") {
    return refused(path, fmt::format("holds elements of type '{:.32}', not '<f4'", header->descr));
  }
  if (header->fortran_order && shape.size() > 1) return refused(path, "is in Fortran order");
  if (shape.empty() || shape.size() > 2) {
    return refused(path, fmt::format("has {} dimensions, not 1 or 2", shape.size()));
  }
  FileTensor tensor{shape[0], shape.size() == 2 ? shape[1] : 1, {}};
  const uint64_t data = bytes.size() - header->data_offset;
  const uint64_t most = data / sizeof(float);
  const bool fits = tensor.cols == 0 || tensor.rows <= most / tensor.cols;
  if (!fits || tensor.rows * tensor.cols * sizeof(float) != data) {
    return refused(path, fmt::format("says {} x {} elements and has {} bytes of them", tensor.rows,
                                     tensor.cols, data));
  }
  tensor.values.resize(most);
  if (most != 0) std::memcpy(tensor.values.data(), bytes.data() + header->data_offset, data);
  return tensor;
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
  return floats_of(path, *bytes);
}

Result<FileTensor> read_tensor(const std::string& path) {
  const auto bytes = read_file(path);
  if (!bytes) return bytes.error();
  FileTensor tensor;
  if (is_npy(*bytes) || path.ends_with(".npy")) {
    auto read = npy_tensor(path, *bytes);
    if (!read) return std::move(read).error();
    tensor = *std::move(read);
  } else {
    auto values = floats_of(path, *bytes);
    if (!values) return std::move(values).error();
    tensor = {values->size(), 1, *std::move(values)};
  }
  if (tensor.values.empty()) return refused(path, "holds no elements");
  return tensor;
}

Result<void> write_file(const std::string& path, const void* data, uint64_t bytes) {
  const File file(std::fopen(path.c_str(), "wb"));
  if (!file) return file_error(path, "cannot create");
  if (std::fwrite(data, 1, bytes, file.get()) != bytes) return file_error(path, "cannot write");
  return {};
}

}  // namespace laconic::tools
