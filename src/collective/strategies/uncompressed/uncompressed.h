// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// uncompressed: the engine's own all-reduce takes the bucket as it is.
//
// Used when some rank's gradient is not finite (a fallback), while a flush drains residuals (sends
// what error feedback has held back), and where the caller or a control policy asks for float32.
// One round. A sum that is NaN from its first element on may be a rank that failed: a status round
// follows, in which every rank reports whether it did.
#pragma once

#include "collective/exchange/riders.h"
#include "collective/exchange/status_round.h"
#include "collective/exchange/strategy.h"

namespace laconic::collective {

class Uncompressed final : public Strategy {
 public:
  enum class Mode : uint8_t {
    plain,     ///< residuals untouched
    fallback,  ///< the strategy has undone its work: a failure now must not lose the gradient
    drain,     ///< a part of each residual goes with the gradient
    dense,     ///< as settings have it, whose way out residuals take; a failure must not lose the
               ///< gradient
  };

  Uncompressed(RankState& state, const Layout& layout, StatusRound& status);
  [[nodiscard]] bool reserve();

  /// Called before begin(). `parts`: for drain, the draining steps left, including this one:
  /// 1/parts of each residual is sent, or more if a control policy releases it. `tells`: ranks
  /// exchange the reports in Input.
  void set_mode(Mode mode, uint32_t parts, bool tells) noexcept {
    mode_ = mode;
    parts_ = parts;
    tells_ = tells;
  }
  void begin(const Input& input) override;
  Result<Next> next(std::span<Step> batch) override;
  /// The only leg: there are no failures elsewhere.
  void fail(const Error&) override {}
  Result<void> finish() override {
    settle();
    return {};
  }
  /// As finish().
  void settle();
  [[nodiscard]] bool replan() override { return true; }
  /// Adds lost gradients of compressed parameters to their residuals, but in plain mode.
  void undo(pipeline::Undo why) override;
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return held(drained_, copy_.at, copy_.memory, told_, riders_);
  }
  [[nodiscard]] uint32_t flush_heard() const noexcept override {
    return tells_ ? riders_.flush() : 0;
  }
  [[nodiscard]] HeardReports reports_heard() const noexcept override {
    return tells_ ? riders_.reports() : HeardReports{};
  }

 private:
  enum class Phase : uint8_t { idle, ready, summed, status };
  /// The gradients of parameters with a residual, until delivery is sure.
  struct Copy {
    std::vector<uint64_t> at;  // by parameter of the layout
    uint64_t floats = 0;       // of all of them
    Arena memory;
    [[nodiscard]] float* of(size_t i) {
      return reinterpret_cast<float*>(memory.bytes().data()) + at[i];
    }
  };

  [[nodiscard]] bool keeps_gradient() const noexcept {
    return mode_ != Mode::plain && copy_.floats != 0;
  }
  /// Do parts of residuals go with the gradients?
  [[nodiscard]] bool releases() const noexcept {
    return mode_ == Mode::drain || mode_ == Mode::dense;
  }
  /// Do ranks tell each other who has a gradient?
  [[nodiscard]] bool asks() const noexcept { return releases() && riders_.joint(); }
  [[nodiscard]] uint32_t parts_of(size_t i) const noexcept;
  bool copy_gradient();
  void drop_copy();
  void add_residuals();
  void drop_residuals();
  void poison();
  [[nodiscard]] bool poisoned();
  Next emit(std::span<Step> batch);

  RankState* state_;
  StatusRound* status_;
  const Layout* layout_;
  std::vector<uint32_t> drained_;  // by parameter of the layout: its residual went with it, in so
                                   // many parts; 0: it did not
  Copy copy_;
  Riders riders_;
  Arena told_;          // its lanes
  bool whole_ = false;  // policies may turn all that is compressed here to float32
  Input input_;
  std::optional<Error> trouble_;
  Mode mode_ = Mode::plain;
  uint32_t parts_ = 0;
  Phase phase_ = Phase::idle;
  bool tells_ = false;
  bool wide_ = false;  // the sum travels as float32: the engine cannot add the bucket's type
};

}  // namespace laconic::collective
