// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// device/block.h on the host, for tests: a block's threads run one after the other, in a chosen
// order, and every access is held against all others of the launch. Two threads of a phase, or two
// blocks, at one address of which one writes are a race, whatever the order made of it; what lies
// outside an allocation, or was never written, is a fault as well.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/phases.h"

namespace laconic::device {

/// The thread that touches something.
struct Toucher {
  static constexpr uint16_t kAll = kThreads;  ///< all threads, between phases
  uint32_t block = 0;
  uint32_t phase = 0;
  uint16_t thread = 0;
  uint16_t line = 0;
};

/// The earlier access that one collides with: `how` is null if there is none.
struct Collision {
  const char* how = nullptr;
  Toucher other;

  [[nodiscard]] std::string text(const Toucher& who) const {
    const std::string line = std::string(", ") + how + " in line " + std::to_string(other.line);
    if (other.block != who.block)
      return line + " by block " + std::to_string(other.block) + " of the launch";
    return line + " in the phase by thread " + std::to_string(other.thread);
  }
};

/// Accesses of one launch to one element.
class Touches {
 public:
  enum class Kind : uint8_t { read, write, atomic };

  Collision add(uint64_t launch, Kind kind, const Toucher& who) {
    if (launch_ != launch) {
      *this = Touches();
      launch_ = launch;
    }
    Collision race;
    if (kind != Kind::read) race = reads_.collision(who, "read");
    if (race.how == nullptr) race = writes_.collision(who, "written");
    if (race.how == nullptr && kind != Kind::atomic) race = atomics_.collision(who, "changed");
    (kind == Kind::read ? reads_ : kind == Kind::write ? writes_ : atomics_).add(who);
    return race;
  }

 private:
  /// The last access, one of another block, and one of another thread of the last one's phase.
  struct Accesses {
    bool any = false, of_another = false, of_other_thread = false;
    Toucher last, another, other_thread;

    void add(const Toucher& who) {
      if (any && last.block != who.block) {
        another = last;
        of_another = true;
      }
      const bool same_phase = any && last.block == who.block && last.phase == who.phase;
      if (!same_phase) of_other_thread = false;
      if (same_phase && last.thread != who.thread) {
        other_thread = last;
        of_other_thread = true;
      }
      last = who;
      any = true;
    }
    [[nodiscard]] Collision collision(const Toucher& who, const char* how) const {
      if (!any) return {};
      if (last.block != who.block) return {how, last};
      if (of_another) return {how, another};
      if (last.phase != who.phase) return {};
      if (last.thread != who.thread || who.thread == Toucher::kAll) return {how, last};
      if (of_other_thread) return {how, other_thread};
      return {};
    }
  };

  uint64_t launch_ = 0;
  Accesses reads_, writes_, atomics_;
};

/// Records without an access: their memory is taken page by page, as kernels touch it.
class TouchTable {
 public:
  TouchTable() = default;
  explicit TouchTable(uint64_t count) : at_(std::calloc(count + 1, sizeof(Touches))) {}
  Touches& operator[](uint64_t i) const { return static_cast<Touches*>(at_.get())[i]; }

 private:
  struct Free {
    void operator()(void* at) const { std::free(at); }
  };
  static_assert(std::is_trivially_copyable_v<Touches>);
  std::unique_ptr<void, Free> at_;
};

/// Allocations of a device, and what kernels did to them.
class CheckedMemory {
 public:
  struct Allocation {
    std::string name;
    uint64_t bytes = 0;
    uint32_t grain = 1;  ///< bytes of an element
    std::unique_ptr<uint8_t[]> memory;
    uint8_t* at = nullptr;         ///< for the host
    TouchTable touches;            ///< by element
    std::vector<uint8_t> written;  ///< by element: since it was allocated
  };

  /// `shift` bytes off an alignment of 64. Elements of `grain` bytes are touched as one.
  uint8_t* allocate(std::string name, uint64_t bytes, uint32_t grain, uint64_t shift = 0) {
    auto memory = std::make_unique<uint8_t[]>(bytes + shift + 128);
    auto address = reinterpret_cast<uintptr_t>(memory.get());
    uint8_t* const at = memory.get() + (64 - address % 64) + shift;
    std::memset(at, 0xA5, bytes);
    add(std::move(name), at, at, bytes, grain).memory = std::move(memory);
    return at;
  }
  /// Memory of the caller's, until release(): kernels know it by the address `device`, the host by
  /// `at`.
  Allocation& add(std::string name, const void* device, uint8_t* at, uint64_t bytes,
                  uint32_t grain = 1) {
    Allocation& made = allocations_[static_cast<const uint8_t*>(device)];
    const uint64_t elements = (bytes + grain - 1) / grain;
    made = {std::move(name),
            bytes,
            grain,
            nullptr,
            at,
            TouchTable(elements),
            std::vector<uint8_t>(elements)};
    return made;
  }
  void release(const void* device) {
    allocations_.erase(static_cast<const uint8_t*>(device));
    last_ = nullptr;
  }
  template <class T>
  T* allocate(std::string name, std::span<const T> values) {
    auto* const at = reinterpret_cast<T*>(
        allocate(std::move(name), values.size_bytes(), std::min<uint32_t>(sizeof(T), 8)));
    if (!values.empty()) std::memcpy(static_cast<void*>(at), values.data(), values.size_bytes());
    set_written(at);
    return at;
  }
  /// As if the host had copied something there.
  void set_written(const void* at) {
    set_written(at, allocations_.at(static_cast<const uint8_t*>(at)).bytes);
  }
  void set_written(const void* at, uint64_t bytes) {
    const auto [of, offset] = find(at, bytes);
    if (of == nullptr || bytes == 0) return;
    const uint64_t first = offset / of->grain, last = (offset + bytes - 1) / of->grain;
    std::fill_n(of->written.begin() + static_cast<int64_t>(first), last - first + 1, uint8_t{1});
  }

  /// The allocation that holds `bytes` at `at`, and where; null if there is none.
  std::pair<Allocation*, uint64_t> find(const void* at, uint64_t bytes) {
    const auto* const p = static_cast<const uint8_t*>(at);
    if (last_ == nullptr || p < last_at_ || p + bytes > last_at_ + last_->bytes) {
      auto after = allocations_.upper_bound(p);
      if (after == allocations_.begin()) return {nullptr, 0};
      --after;
      if (p + bytes > after->first + after->second.bytes) return {nullptr, 0};
      last_ = &after->second;
      last_at_ = after->first;
    }
    return {last_, static_cast<uint64_t>(p - last_at_)};
  }

  void begin_launch() { ++launch_; }
  [[nodiscard]] uint64_t launch() const { return launch_; }

  void report(std::string fault) {
    if (faults_.size() < 8) faults_.push_back(std::move(fault));
  }
  [[nodiscard]] const std::vector<std::string>& faults() const { return faults_; }
  std::vector<std::string> take_faults() { return std::exchange(faults_, {}); }

 private:
  std::map<const uint8_t*, Allocation> allocations_;
  Allocation* last_ = nullptr;
  const uint8_t* last_at_ = nullptr;
  uint64_t launch_ = 0;
  std::vector<std::string> faults_;
};

class CheckedBlock {
 public:
  template <class T>
  class PerThread {
   public:
    explicit PerThread(CheckedBlock& block, T value = T{}) : block_(&block) { values_.fill(value); }
    T& operator[](uint32_t thread) {
      if (thread != block_->who_.thread) block_->fault("a variable of another thread", "");
      return values_[thread];
    }

   private:
    friend class CheckedBlock;
    CheckedBlock* block_;
    std::array<T, kThreads> values_;
  };
  template <class T, uint32_t kCount>
  class Cells {
    friend class CheckedBlock;
    TouchTable touches_{kCount};
    std::array<bool, kCount> written_{};
    std::array<T, kCount> at_{};
  };

  /// `order`: in which threads run.
  CheckedBlock(std::string_view kernel, uint32_t index, CheckedMemory& memory,
               std::span<const uint32_t> order)
      : kernel_(kernel), memory_(memory), order_(order) {
    who_ = {index, 0, Toucher::kAll, 0};
  }

  [[nodiscard]] uint64_t index() const { return who_.block; }

  template <class F>
  void each(F&& f) {
    alone(f);
    meet();
  }
  template <class F>
  void alone(F&& f) {
    for (const uint32_t thread : order_) {
      who_.thread = static_cast<uint16_t>(thread);
      f(thread);
    }
    who_.thread = Toucher::kAll;
  }
  void meet() { ++who_.phase; }

  template <class T>
  [[nodiscard]] T read(const T* from, uint64_t i, int line = __builtin_LINE()) {
    return get<T>(from + i, line);
  }
  template <class T>
  void write(T* to, uint64_t i, std::type_identity_t<T> value, int line = __builtin_LINE()) {
    put(to + i, value, line);
  }
  template <class T, uint32_t kCount>
  [[nodiscard]] T read(const Cells<T, kCount>& cells, uint32_t i, int line = __builtin_LINE()) {
    if (!touch_cell(cells, i, Touches::Kind::read, line)) return T{};
    if (!cells.written_[i]) fault("a cell that was never written", "");
    return cells.at_[i];
  }
  template <class T, uint32_t kCount>
  void write(Cells<T, kCount>& cells, uint32_t i, std::type_identity_t<T> value,
             int line = __builtin_LINE()) {
    if (!touch_cell(cells, i, Touches::Kind::write, line)) return;
    cells.written_[i] = true;
    cells.at_[i] = value;
  }
  template <class T>
  [[nodiscard]] T load(const uint8_t* from, uint64_t offset, int line = __builtin_LINE()) {
    return get<T>(from + offset, line);
  }
  template <class T>
  void store(uint8_t* to, uint64_t offset, T value, int line = __builtin_LINE()) {
    put(to + offset, value, line);
  }
  void raise(uint32_t* to, uint32_t value, int line = __builtin_LINE()) {
    change(to, line, [&](uint32_t was) { return Max{}(was, value); });
  }
  void add(uint32_t* to, uint64_t i, uint32_t value, int line = __builtin_LINE()) {
    change(to + i, line, [&](uint32_t was) { return was + value; });
  }
  template <uint32_t kCount>
  void add(Cells<uint32_t, kCount>& cells, uint32_t i, uint32_t value,
           int line = __builtin_LINE()) {
    if (!touch_cell(cells, i, Touches::Kind::atomic, line)) return;
    if (!cells.written_[i]) fault("a cell that was never written", "");
    cells.at_[i] += value;
  }

  template <class T, class Op>
  void warp_fold(PerThread<T>& value, Op op) {
    for (uint32_t first = 0; first < kThreads; first += kWarp) {
      T* const of = value.values_.data() + first;
      for (uint32_t d = kWarp / 2; d > 0; d /= 2)
        for (uint32_t l = 0; l < d; ++l) of[l] = op(of[l], of[l + d]);
      std::fill_n(of + 1, kWarp - 1, of[0]);
    }
  }
  void warp_max(PerThread<uint32_t>& value) { warp_fold(value, Max{}); }
  template <class T, class Op>
  void warp_scan(PerThread<T>& value, Op op) {
    for (uint32_t t = 0; t < kThreads; ++t)
      if (t % kWarp != 0) value.values_[t] = op(value.values_[t - 1], value.values_[t]);
  }

 private:
  void fault(const std::string& what, const std::string& more) {
    const std::string thread =
        who_.thread == Toucher::kAll ? "all threads" : "thread " + std::to_string(who_.thread);
    memory_.report(std::string(kernel_) + ", line " + std::to_string(who_.line) + ", block " +
                   std::to_string(who_.block) + ", " + thread + ": " + what + more);
  }
  template <class T, uint32_t kCount>
  bool touch_cell(const Cells<T, kCount>& cells, uint32_t i, Touches::Kind kind, int line) {
    who_.line = static_cast<uint16_t>(line);
    if (i >= kCount) {
      fault("outside the cells", "");
      return false;
    }
    if (kind != Touches::Kind::read && who_.thread == Toucher::kAll)
      fault("written between phases", "");
    const Collision race = cells.touches_[i].add(1, kind, who_);
    if (race.how != nullptr) fault("race for cell " + std::to_string(i), race.text(who_));
    return true;
  }
  /// Those bytes for the host; null outside.
  uint8_t* touch(const void* at, uint64_t bytes, Touches::Kind kind, int line) {
    who_.line = static_cast<uint16_t>(line);
    const auto [allocation, offset] = memory_.find(at, bytes);
    if (allocation == nullptr) {
      fault("outside every allocation", "");
      return nullptr;
    }
    if (kind != Touches::Kind::read && who_.thread == Toucher::kAll)
      fault("written between phases: " + allocation->name, "");
    const uint64_t last = (offset + bytes - 1) / allocation->grain;
    for (uint64_t i = offset / allocation->grain; i <= last; ++i) {
      const Collision race = allocation->touches[i].add(memory_.launch(), kind, who_);
      if (race.how != nullptr)
        fault("race for " + allocation->name + "[" + std::to_string(i) + "]", race.text(who_));
      if (kind != Touches::Kind::write && allocation->written[i] == 0)
        fault("never written: " + allocation->name + "[" + std::to_string(i) + "]", "");
      if (kind != Touches::Kind::read) allocation->written[i] = 1;
    }
    return allocation->at + offset;
  }
  template <class F>
  void change(uint32_t* to, int line, F&& f) {
    uint8_t* const at = touch(to, sizeof *to, Touches::Kind::atomic, line);
    if (at == nullptr) return;
    uint32_t was;
    std::memcpy(&was, at, sizeof was);
    was = f(was);
    std::memcpy(at, &was, sizeof was);
  }
  template <class T>
  T get(const void* from, int line) {
    T value{};
    const uint8_t* const at = touch(from, sizeof(T), Touches::Kind::read, line);
    if (at != nullptr) std::memcpy(static_cast<void*>(&value), at, sizeof(T));
    return value;
  }
  template <class T>
  void put(void* to, const T& value, int line) {
    uint8_t* const at = touch(to, sizeof(T), Touches::Kind::write, line);
    if (at != nullptr) std::memcpy(at, &value, sizeof(T));
  }

  std::string_view kernel_;
  CheckedMemory& memory_;
  std::span<const uint32_t> order_;
  Toucher who_;
};

}  // namespace laconic::device
