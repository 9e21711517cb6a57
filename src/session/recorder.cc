// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/recorder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

namespace laconic::session {
namespace {

constexpr std::string_view kBegin = R"({"format": "laconic record", )";
constexpr uint64_t kMost = uint64_t{1} << 30U;  // bytes of a record that is replayed

std::string why(int number) { return std::generic_category().message(number); }

Error refused(const std::string& file, const std::string& what, std::string hint) {
  return {Errc::invalid_argument, "record '" + file + "': " + what, std::move(hint)};
}

ssize_t read_at(int descriptor, char* out, size_t bytes, off_t at) {
  ssize_t got = -1;
  do {
    got = ::pread(descriptor, out, bytes, at);
  } while (got < 0 && errno == EINTR);
  return got;
}

/// Offset of the end of the last complete line.
off_t end_of_lines(int descriptor, off_t size) {
  std::array<char, 4096> piece;
  while (size > 0) {
    const auto bytes = static_cast<size_t>(std::min<off_t>(size, piece.size()));
    const off_t from = size - static_cast<off_t>(bytes);
    if (read_at(descriptor, piece.data(), bytes, from) != static_cast<ssize_t>(bytes)) return size;
    const size_t feed = std::string_view(piece.data(), bytes).rfind('\n');
    if (feed != std::string_view::npos) return from + static_cast<off_t>(feed) + 1;
    size = from;
  }
  return 0;
}

/// Checks that the file may be continued.
Result<void> check(int descriptor, const std::string& file) {
  struct stat about {};
  if (::fstat(descriptor, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size == 0) return {};
  std::array<char, kBegin.size()> first{};
  const auto bytes = static_cast<size_t>(std::min<off_t>(about.st_size, first.size()));
  const ssize_t got = read_at(descriptor, first.data(), bytes, 0);
  const bool ours = got == static_cast<ssize_t>(bytes) &&
                    std::string_view(first.data(), bytes) == kBegin.substr(0, bytes);
  if (!ours) {
    return refused(file, "the file exists and is not a record",
                   "use a new file, or a record to continue");
  }
  const off_t whole = end_of_lines(descriptor, about.st_size);
  if (whole != about.st_size && ::ftruncate(descriptor, whole) != 0) {
    return refused(file, "cannot remove its truncated last line: " + why(errno), "use a new file");
  }
  return {};
}

}  // namespace

Recorder::Recorder(std::string file, control::RecordedRun run, int descriptor)
    : file_(std::move(file)), run_(std::move(run)), descriptor_(descriptor) {
  line_.reserve(control::line_room(run_));
}

Recorder::~Recorder() { end(); }

void Recorder::end() noexcept {
  if (descriptor_ < 0) return;
  ::flock(descriptor_, LOCK_UN);  // processes that were forked meanwhile have the descriptor, too
  ::close(descriptor_);
  descriptor_ = -1;
}

Result<std::unique_ptr<Recorder>> Recorder::open(const std::string& file,
                                                 control::RecordedRun run) {
  constexpr mode_t kMode = 0666;
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, kMode);
  if (descriptor < 0) {
    return refused(file, "cannot write it: " + why(errno),
                   "rank 0 writes the record: use a path that it can write to");
  }
  std::unique_ptr<Recorder> made(new Recorder(file, std::move(run), descriptor));
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return refused(file, "another session is writing it", "use a separate file for each session");
  }
  if (auto fine = check(descriptor, file); !fine) return std::move(fine).error();
  return made;
}

/// All of a text, or none of it.
void Recorder::write(const std::string& text) {
  struct stat about {};
  const bool known = ::fstat(descriptor_, &about) == 0 && S_ISREG(about.st_mode);
  ssize_t written = -1;
  do {
    written = ::write(descriptor_, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) return;
  const int number = written < 0 ? errno : ENOSPC;
  if (known && written > 0 && ::ftruncate(descriptor_, about.st_size) != 0) {
    // A line that is cut: the next session that writes here, or a reader, names it.
  }
  end();
  trouble_ = "cannot write '" + file_ + "': " + why(number);
}

void Recorder::put(const control::RecordedStep& step) {
  if (descriptor_ < 0) return;
  if (step.step < next_) {
    end();
    trouble_ = "step " + std::to_string(step.step) + " is not after the previous step";
    return;
  }
  control::put_line(step, run_, line_);
  write(line_);
  if (descriptor_ < 0) return;
  ++steps_;
  next_ = step.step + 1;
}

void Recorder::go_on_with(const control::RecordedRun& run) noexcept {
  begun_ = false;
  try {
    run_ = run;
  } catch (const std::bad_alloc&) {
    end();
    trouble_ = "out of memory";
  }
}

void Recorder::begin_step(const Steering& steering) noexcept {
  if (descriptor_ < 0) return;
  try {
    if (!begun_ || !steering.loaded().empty()) {
      run_.state.assign(steering.loaded().begin(), steering.loaded().end());
      write(control::record_line(run_));
      begun_ = true;
      next_ = 0;
    }
    if (const control::RecordedStep* last = steering.ended()) put(*last);
  } catch (const std::bad_alloc&) {
    end();
    trouble_ = "out of memory";  // which needs none
  }
}

namespace {

/// To its end, or until it is too long. 0, or an error's number.
int read_into(std::string& text, int descriptor) {
  std::array<char, 65536> piece;
  while (text.size() <= kMost) {
    const ssize_t got = ::read(descriptor, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : 0;
    text.append(piece.data(), static_cast<size_t>(got));
  }
  return 0;
}

}  // namespace

Result<std::string> read_whole(const std::string& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return refused(file, "cannot read it: " + why(errno),
                   "every rank reads the file from its own disk");
  }
  std::string text;
  int number = 0;
  try {
    number = read_into(text, descriptor);
  } catch (const std::bad_alloc&) {
    number = ENOMEM;
  }
  ::close(descriptor);
  if (number != 0) return refused(file, "cannot read it: " + why(number), {});
  if (text.size() > kMost) return refused(file, "is longer than 1 GiB", "replay a part of it");
  return text;
}

}  // namespace laconic::session
