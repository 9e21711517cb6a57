// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <unistd.h>

#include <array>
#include <cerrno>

namespace laconic::lab {
namespace {

/// A line without end (a progress bar, binary output) is cut here rather than kept until its end.
constexpr std::size_t kLongestLine = 64 * 1024;

}  // namespace

LineRelay::LineRelay(Fd source, int target, std::string prefix, Fd log)
    : source_(std::move(source)),
      target_(target),
      prefix_(std::move(prefix)),
      log_(std::move(log)) {}

bool LineRelay::drain() {
  std::array<char, 16 * 1024> block{};
  // At most four times what a pipe holds: a rank that never stops writing must not starve the
  // others.
  for (int blocks = 0; blocks < 16; ++blocks) {
    const ssize_t n = read(source_.get(), block.data(), block.size());
    if (n > 0) {
      take({block.data(), static_cast<std::size_t>(n)});
    } else if (n == 0 || errno != EINTR) {
      return n < 0 && errno == EAGAIN;
    }
  }
  return true;
}

void LineRelay::finish() {
  if (!partial_.empty()) emit(partial_ + "\n");
  partial_.clear();
}

void LineRelay::take(std::string_view bytes) {
  if (log_) write_all(log_.get(), bytes);
  partial_ += bytes;
  std::size_t begin = 0;
  for (std::size_t end = partial_.find('\n'); end != std::string::npos;
       end = partial_.find('\n', begin)) {
    emit(std::string_view(partial_).substr(begin, end + 1 - begin));
    begin = end + 1;
  }
  partial_.erase(0, begin);
  if (partial_.size() > kLongestLine) finish();
}

void LineRelay::emit(std::string_view line) {
  if (!write_all(target_, prefix_ + std::string(line))) broken_ = true;
}

}  // namespace laconic::lab
