// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks over the recording NCCL: threads, each with its own device.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engines/fake_nccl.h"
#include "laconic/engine/nccl.h"
#include "support/on_all.h"

namespace laconic::test {

using Bytes = std::vector<uint8_t>;
using std::chrono::milliseconds;
inline constexpr int kNew = 22703, kOld = 2708;
inline constexpr auto kSoon = milliseconds(150);      // for what will not come
inline constexpr auto kTimeout = milliseconds(1000);  // the same, where a call has to come first
inline constexpr auto kLong = std::chrono::seconds(100);  // unless something is wrong

/// The simulated NCCL next to this program, as it was loaded.
class Fake {
 public:
  explicit Fake(int version = kNew, int devices = 8)
      : path_(std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" /
              (version < 21400 ? "liblaconic_fake_nccl_old.so" : "liblaconic_fake_nccl.so")) {
    handle_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
    controls_ = reinterpret_cast<const FakeNccl* (*)()>(dlsym(handle_, "fake_nccl"))();
    controls_->reset(version, devices);
    alive_before_ = controls_->alive();
  }
  const FakeNccl* operator->() const { return controls_; }
  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] NcclLibraries libraries() const { return {path(), path()}; }
  /// Since the last time.
  [[nodiscard]] std::string calls(int device) const {
    std::string text(1 << 16, '\0');
    text.resize(controls_->calls(device, text.data(), text.size()));
    return text;
  }
  /// The number of objects created since, and not freed.
  [[nodiscard]] uint64_t alive() const { return controls_->alive() - alive_before_; }
  /// As soon as abandoned threads have ended.
  [[nodiscard]] bool becomes(uint64_t alive_then) const {
    for (int turn = 0; turn < 20'000 && alive() != alive_then; ++turn)
      std::this_thread::sleep_for(milliseconds(5));
    return alive() == alive_then;
  }
  /// Whether this thread has no context left.
  [[nodiscard]] bool no_context() const {
    return reinterpret_cast<int (*)(void**)>(dlsym(handle_, "cuCtxPopCurrent_v2"))(nullptr) == 201;
  }

 private:
  std::filesystem::path path_;
  void* handle_ = nullptr;
  const FakeNccl* controls_ = nullptr;
  uint64_t alive_before_ = 0;
};

/// Rank 0's id for all others.
class Board {
 public:
  NcclShare share(uint32_t rank) {
    return [this, rank](std::span<uint8_t> id) -> Result<void> {
      if (rank == 0) {
        written_.set_value(Bytes(id.begin(), id.end()));
      } else {
        if (shared_.wait_for(kLong) != std::future_status::ready)
          return Error{Errc::timed_out, "rank 0 has shared nothing", {}};
        const Bytes& from_0 = shared_.get();
        std::copy(from_0.begin(), from_0.end(), id.begin());
      }
      return {};
    };
  }

 private:
  std::promise<Bytes> written_;
  std::shared_future<Bytes> shared_ = written_.get_future().share();
};

using Created = Result<std::unique_ptr<NcclEngine>>;
inline std::vector<Created> none_yet(uint32_t world) {
  std::vector<Created> created;
  for (uint32_t r = 0; r < world; ++r) created.emplace_back(Errc::internal);
  return created;
}

class Group {
 public:
  Group(const Fake& fake, uint32_t world, milliseconds timeout = kLong)
      : created_(none_yet(world)) {
    Board board;
    on_all(world, [&](uint32_t r) {
      NcclOptions options{fake.libraries(), r, world, r, timeout, kLong};
      created_[r] = NcclEngine::create(options, board.share(r));
    });
  }
  ~Group() {
    on_all(static_cast<uint32_t>(created_.size()),
           [&](uint32_t r) { created_[r] = Errc::internal; });
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  Created& created(uint32_t rank) { return created_[rank]; }
  NcclEngine& operator[](uint32_t rank) { return **created_[rank]; }
  [[nodiscard]] bool all() const {
    return std::all_of(created_.begin(), created_.end(), [](const Created& c) { return c.ok(); });
  }

 private:
  std::vector<Created> created_;
};

inline Step sum_of(std::vector<float>& lanes) {
  auto* const at = reinterpret_cast<uint8_t*>(lanes.data());
  return {.dtype = DType::f32, .count = lanes.size(), .send = at, .recv = at};
}

/// All buffers of a step that moves bytes: `bytes(from, to)` of them.
struct Moves {
  Moves(uint32_t rank, uint32_t world, const std::function<uint64_t(uint32_t, uint32_t)>& bytes)
      : zeros(world, 0) {
    uint64_t sent = 0, received = 0;
    for (uint32_t r = 0; r < world; ++r) {
      send_counts.push_back(bytes(rank, r));
      send_offsets.push_back(std::exchange(sent, sent + send_counts.back() + 5));
      recv_counts.push_back(bytes(r, rank));
      recv_offsets.push_back(std::exchange(received, received + recv_counts.back() + 3));
    }
    send.resize(sent);
    recv.resize(received);
  }
  Step all_to_all() {
    return {.kind = StepKind::all_to_all,
            .send = send.data(),
            .recv = recv.data(),
            .send_counts = send_counts,
            .send_offsets = send_offsets,
            .recv_counts = recv_counts,
            .recv_offsets = recv_offsets};
  }
  Step all_gather() {
    Step step = all_to_all();
    step.kind = StepKind::all_gather;
    step.send_offsets = zeros;
    return step;
  }
  Bytes send, recv;
  std::vector<uint64_t> send_counts, send_offsets, recv_counts, recv_offsets, zeros;
};

}  // namespace laconic::test
