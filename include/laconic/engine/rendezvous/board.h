// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Board: small values that all ranks of a group share, each written once; and a folder that stores
// them.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "laconic/engine.h"
#include "laconic/error.h"

namespace laconic::rendezvous {

using Clock = std::chrono::steady_clock;
inline constexpr size_t kMaxKey = 64;
inline constexpr size_t kMaxValue = size_t{1} << 20;
/// Prefix of news: over TCP every rank receives them at once, so that they outlive rank 0.
inline constexpr std::string_view kNews = "news.";
inline constexpr size_t kMaxNews = 1024;
/// Keys of news: why ranks cannot meet, and why a group has ended.
inline constexpr std::string_view kMeeting = "news.meeting", kFault = "news.fault";

/// Values by key, written once, the same for all ranks. Keys: 1 to kMaxKey letters, digits, '.',
/// '_', '-', not starting with '.'; values: 1 to kMaxValue bytes, news at most kMaxNews.
/// Thread-safe.
class Board {
 public:
  Board() = default;
  virtual ~Board() = default;
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  /// Writes `value` unless `key` has one. Returns the value of `key`.
  virtual Result<std::string> put(const std::string& key, const std::string& value,
                                  Deadline deadline) = 0;
  /// Returns the value of `key`; empty: none yet.
  virtual Result<std::string> get(const std::string& key, Deadline deadline) = 0;
  /// True if rank 0 stores the values: an Error of put or get is then about rank 0.
  [[nodiscard]] virtual bool kept_by_rank_0() const noexcept = 0;
};

inline bool is_key(std::string_view key) noexcept {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  };
  return !key.empty() && key.size() <= kMaxKey && key[0] != '.' &&
         std::all_of(key.begin(), key.end(), allowed);
}
inline bool is_value(std::string_view key, std::string_view value) noexcept {
  return !value.empty() && value.size() <= (key.starts_with(kNews) ? kMaxNews : kMaxValue);
}

namespace detail {

inline void put_le(std::string* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}
inline uint64_t get_le(std::string_view bytes) noexcept {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// A file descriptor, closed on destruction.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }
  void reset() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// "Connection refused"
inline std::string reason(int error) { return std::generic_category().message(error); }

inline int milliseconds_to(Deadline deadline) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace detail

/// A file per key. Incomplete files do not count.
class FolderBoard final : public Board {
 public:
  explicit FolderBoard(std::string folder) : folder_(std::move(folder)) {}

  Result<std::string> put(const std::string& key, const std::string& value,
                          Deadline deadline) override {
    if (!is_key(key) || !is_value(key, value)) return Errc::invalid_argument;
    const std::string path = folder_ + "/" + key;
    const detail::Fd file(
        ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!file) return errno == EEXIST ? settled(key, deadline) : unusable(errno);
    std::string bytes;
    detail::put_le(&bytes, value.size(), 8);
    bytes += value;
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::write(file.get(), bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return unusable(errno);
      done += static_cast<size_t>(n);
    }
    return value;
  }

  Result<std::string> get(const std::string& key, Deadline) override {
    if (!is_key(key)) return Errc::invalid_argument;
    // Does not block if a named pipe has the file's name.
    const detail::Fd file(
        ::open((folder_ + "/" + key).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file) return errno == ENOENT ? Result<std::string>(std::string()) : unusable(errno);
    struct stat facts {};
    if (::fstat(file.get(), &facts) != 0) return unusable(errno);
    if (!S_ISREG(facts.st_mode) || facts.st_size > static_cast<off_t>(8 + kMaxValue))
      return unusable(EINVAL);
    std::string bytes(static_cast<size_t>(facts.st_size), '\0');
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = ::read(file.get(), bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    if (done < 8 || detail::get_le(std::string_view(bytes).substr(0, 8)) != done - 8)
      return std::string();
    std::string value = bytes.substr(8, done - 8);
    return is_value(key, value) ? Result<std::string>(std::move(value)) : unusable(EINVAL);
  }

  [[nodiscard]] bool kept_by_rank_0() const noexcept override { return false; }

 private:
  /// Another rank has the key, and may still be writing.
  Result<std::string> settled(const std::string& key, Deadline deadline) {
    for (;;) {
      auto there = get(key, deadline);
      if (!there || !there->empty()) return there;
      if (Clock::now() >= deadline) return unusable(EBUSY);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  [[nodiscard]] Error unusable(int error) const {
    return {Errc::engine_failed,
            "cannot use the rendezvous folder " + folder_ + ": " + detail::reason(error),
            "use an empty folder that all ranks can write to"};
  }

  std::string folder_;
};

}  // namespace laconic::rendezvous
