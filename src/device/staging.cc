// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "device/staging.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace laconic::device {

Result<std::unique_ptr<Staging>> Staging::create(std::shared_ptr<const Program> program,
                                                 uint64_t buffer) {
  auto stream = Stream::create(program->gpu());
  if (!stream) return std::move(stream).error();
  auto memory = Memory::allocate(program->gpu(), Memory::Where::pinned, buffer);
  if (!memory) return std::move(memory).error();
  return std::unique_ptr<Staging>(
      new Staging(std::move(program), *std::move(memory), *std::move(stream)));
}

/// As many pieces, or parts of them, as the buffer takes travel before it waits.
Result<void> Staging::run(std::span<const Piece> pieces, bool down) const {
  const std::lock_guard lock(mutex_);
  std::array<Piece, 64> queued;
  std::size_t count = 0;
  uint64_t used = 0;
  const auto flush = [&]() -> Result<void> {
    auto done = stream_.wait();
    const uint8_t* from = buffer_.at();
    for (const Piece& piece : std::span(queued).first(count)) {
      if (done && down) std::memcpy(piece.host, from, piece.bytes);
      from += piece.bytes;
    }
    count = 0;
    used = 0;
    return done;
  };
  for (const Piece& piece : pieces) {
    for (uint64_t first = 0; first < piece.bytes;) {
      if (count == queued.size() || used == buffer_.bytes()) {
        if (auto done = flush(); !done) return done;
      }
      const Piece part{static_cast<uint8_t*>(piece.host) + first,
                       static_cast<uint8_t*>(piece.there) + first,
                       std::min(piece.bytes - first, buffer_.bytes() - used)};
      uint8_t* const at = buffer_.at() + used;
      if (!down) std::memcpy(at, part.host, part.bytes);
      auto begun = down ? stream_.copy_out(at, part.there, part.bytes)
                        : stream_.copy_in(part.there, at, part.bytes);
      if (!begun) {
        (void)stream_.wait();
        return begun;
      }
      queued[count++] = part;
      used += part.bytes;
      first += part.bytes;
    }
  }
  return flush();
}

Result<void> Staging::copy(void* to, const void* from, uint64_t bytes) const {
  auto begun = stream_.copy(to, from, bytes);
  auto done = stream_.wait();
  return begun ? std::move(done) : std::move(begun);
}

Result<void> Staging::clear(void* there, uint64_t bytes) const {
  auto begun = stream_.clear(there, bytes);
  auto done = stream_.wait();
  return begun ? std::move(done) : std::move(begun);
}

}  // namespace laconic::device
