// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks over Gloo that are processes, forked before there is a thread, so that they can be killed
// and stopped.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "engines/rendezvous/posix.h"
#include "laconic/engine/gloo.h"
#include "laconic/engine/rendezvous.h"
#include "laconic/random.h"
#include "support/place.h"

namespace laconic::test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kLong = seconds(100);  // nothing takes as long unless something is wrong

/// The pipes between a rank's process and the test.
class Stage {
 public:
  Stage(int to_test, int from_test) : to_test_(to_test), from_test_(from_test) {}
  void say(std::string line) const {
    line += '\n';
    if (::write(to_test_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(3);
  }
  /// Until the test says go().
  void await_go() const {
    char byte = 0;
    if (::read(from_test_, &byte, 1) != 1) _exit(3);
  }

 private:
  int to_test_, from_test_;
};

/// Processes, one per rank. All are gone with it.
class Processes {
 public:
  using Body = std::function<void(uint32_t rank, const Stage& stage)>;
  explicit Processes(uint32_t count, const Body& body) {
    for (uint32_t rank = 0; rank < count; ++rank) {
      int up[2], down[2];
      if (::pipe(up) != 0 || ::socketpair(AF_UNIX, SOCK_STREAM, 0, down) != 0)
        throw std::runtime_error("no pipe");
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(300);
        body(rank, Stage(up[1], down[0]));
        _exit(0);
      }
      ::close(up[1]);
      ::close(down[0]);
      ranks_.push_back({child, Fd(up[0]), Fd(down[1]), {}});
    }
  }
  ~Processes() {
    for (const Rank& rank : ranks_) {
      if (rank.process < 0) continue;
      ::kill(rank.process, SIGKILL);
      ::waitpid(rank.process, nullptr, 0);
    }
  }
  /// The next line; what comes instead if none does.
  std::string heard(uint32_t rank) {
    Rank& from = ranks_[rank];
    const auto deadline = Clock::now() + kLong;
    for (;;) {
      if (const size_t end = from.said.find('\n'); end != std::string::npos) {
        std::string line = from.said.substr(0, end);
        from.said.erase(0, end + 1);
        return line;
      }
      pollfd waiting{from.up.get(), POLLIN, 0};
      if (::poll(&waiting, 1, rendezvous::detail::milliseconds_to(deadline)) <= 0)
        return "(silence)";
      char bytes[4096];
      const ssize_t n = ::read(from.up.get(), bytes, sizeof bytes);
      if (n <= 0) return ended(from);
      from.said.append(bytes, static_cast<size_t>(n));
    }
  }
  /// A rank that has ended is a failure of the test, not a signal.
  void go(uint32_t rank) { EXPECT_EQ(::send(ranks_[rank].down.get(), "g", 1, MSG_NOSIGNAL), 1); }
  void send(uint32_t rank, int signal) {
    const pid_t process = ranks_[rank].process;
    if (process < 0 || ::kill(process, signal) != 0) return;
    if (signal == SIGSTOP) ::waitpid(process, nullptr, WUNTRACED);  // its threads stop one by one
  }

 private:
  struct Rank;
  static std::string ended(Rank& rank) {
    int status = 0;
    if (::waitpid(std::exchange(rank.process, -1), &status, 0) <= 0 || status == 0)
      return "(ended)";
    return WIFSIGNALED(status) ? "(signal " + std::to_string(WTERMSIG(status)) + ")" : "(failed)";
  }
  struct Rank {
    pid_t process;
    Fd up, down;
    std::string said;
  };
  std::vector<Rank> ranks_;
};

/// Folders that go with the test, and free ports, as rendezvous.
class Place {
 public:
  /// Another one for every name.
  std::string folder(const std::string& name = "a") const {
    std::filesystem::create_directory(folder_.path() + "/" + name);
    return "file:" + folder_.path() + "/" + name;
  }
  static std::string port() { return "tcp:127.0.0.1:" + free_port(); }

 private:
  Folder folder_;
};

inline GlooOptions options(uint32_t rank, uint32_t world, const std::string& rendezvous,
                           milliseconds timeout = kLong) {
  return {.rank = rank,
          .world = world,
          .rendezvous = rendezvous,
          .interface_ = "lo",
          .timeout = timeout};
}

inline std::string text(const Error& error) {
  return std::string(errc_name(error.code)) + ": " + error.message;
}
template <class T>
std::string text(const Result<T>& result) {
  return result ? "ok" : text(result.error());
}

inline std::unique_ptr<GlooEngine> join(const Stage& stage, const GlooOptions& wanted) {
  auto engine = GlooEngine::create(wanted);
  if (!engine) {
    stage.say(text(engine));
    _exit(2);
  }
  return *std::move(engine);
}

/// One batch, with all memory that it needs.
class Batch {
 public:
  Batch(StepKind kind, uint32_t rank, uint32_t world, uint64_t bytes, uint32_t tag)
      : rank_(rank),
        counts_(world, bytes),
        zeros_(world),
        send_(world * bytes),
        recv_(world * bytes) {
    for (uint32_t r = 0; r < world; ++r) {
      offsets_.push_back(r * bytes);
      std::fill_n(send_.begin() + static_cast<ptrdiff_t>(r * bytes), bytes, mark(rank, r));
      if (r != rank)
        messages_.push_back({r, &send_[r * bytes], bytes, recv_.data() + r * bytes, bytes});
    }
    step_.kind = kind;
    step_.tag = tag;
    if (kind == StepKind::all_reduce) {
      sum_.assign(bytes / 4 + 1, static_cast<float>(rank + 1));
      step_.dtype = DType::f32;
      step_.count = sum_.size();
      step_.send = step_.recv = reinterpret_cast<uint8_t*>(sum_.data());
    } else if (kind == StepKind::messages) {
      step_.messages = messages_;
    } else {
      step_.send = send_.data();
      step_.recv = recv_.data();
      step_.send_counts = step_.recv_counts = counts_;
      step_.send_offsets = kind == StepKind::all_gather ? zeros_ : offsets_;
      step_.recv_offsets = offsets_;
    }
  }
  Batch(const Batch&) = delete;
  [[nodiscard]] std::span<const Step> steps() const { return {&step_, 1}; }
  Result<void> run(Engine& engine, milliseconds timeout = kLong) const {
    auto ticket = engine.start(steps());
    return ticket ? engine.wait(*ticket, Clock::now() + timeout) : Result<void>(ticket.error());
  }
  /// All that should have arrived is there.
  [[nodiscard]] bool complete() const {
    const auto world = static_cast<uint32_t>(counts_.size());
    if (step_.kind == StepKind::all_reduce) {
      const auto total = static_cast<float>(world * (world + 1) / 2);
      return std::all_of(sum_.begin(), sum_.end(), [&](float x) { return x == total; });
    }
    for (uint32_t r = 0; r < world; ++r) {
      if (r == rank_ && step_.kind == StepKind::messages) continue;
      const uint32_t to = step_.kind == StepKind::all_gather ? 0 : rank_;
      for (uint64_t i = 0; i < counts_[r]; ++i) {
        if (recv_[offsets_[r] + i] != mark(r, to)) return false;
      }
    }
    return true;
  }
  void overwrite(uint8_t byte) {
    std::fill(recv_.begin(), recv_.end(), byte);
    if (!sum_.empty()) std::memset(sum_.data(), byte, sum_.size() * sizeof(float));
  }
  [[nodiscard]] bool is_all(uint8_t byte) const {
    const auto* at = reinterpret_cast<const uint8_t*>(sum_.data());
    const auto same = [&](uint8_t x) { return x == byte; };
    return std::all_of(recv_.begin(), recv_.end(), same) &&
           std::all_of(at, at + sum_.size() * sizeof(float), same);
  }

 private:
  static uint8_t mark(uint32_t from, uint32_t to) {
    return static_cast<uint8_t>(1 + from * 16 + to);
  }
  uint32_t rank_;
  std::vector<uint64_t> counts_, zeros_, offsets_;
  std::vector<uint8_t> send_, recv_;
  std::vector<float> sum_;
  std::vector<Message> messages_;
  Step step_;
};

inline float noise(uint32_t rank, uint64_t i) {
  return static_cast<float>(philox({1, rank}, i / 4, 3)[i % 4] >> 8) / 65536.0F - 100.0F;
}

}  // namespace laconic::test
