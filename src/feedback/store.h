// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Everything a rank remembers between steps, as named float arrays: residuals of its own gradients,
// residuals of the means it owns, codec state. One object owns it, so that saving, restoring,
// scaling and flushing are loops over it.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/arena.h"
#include "feedback/residence.h"
#include "laconic/error.h"

namespace laconic::feedback {

enum class StateKind : uint8_t {
  residual,        ///< own error feedback of a parameter, in units of the gradient
  owner_residual,  ///< error feedback of a mean that this rank owns
  mean,            ///< running mean of a parameter's gradients, in their units
  momentum,        ///< DGC's momentum of a parameter, in units of the gradient
  codec_state,     ///< warm starts, adaptive stages: no unit
  range,           ///< of a parameter's fixed point, in units of the gradient: no memory of it
  master,          ///< float32 of a range that this rank owns, in units of the parameter
};

/// The end of the name of codec state that a saved one may lack: it is then as it was created.
inline constexpr std::string_view kMayLack = "?";

class Store {
 public:
  struct Entry {
    std::string name;
    StateKind kind = StateKind::residual;
    std::span<float> values;  ///< valid while home is on the host
    Residence home;
  };

  /// A zeroed array that lives as long as the store. Names are unique: "residual/fc1.weight".
  /// `home`: takes where it is.
  Result<std::span<float>> add(StateKind kind, std::string name, uint64_t count,
                               Residence** home = nullptr);
  /// All arrays, so that everybody may read and change them.
  Result<void> to_host();
  /// All arrays have their values on the host, too.
  Result<void> read() const;

  void swap(Store& other) noexcept {
    entries_.swap(other.entries_);
    names_.swap(other.names_);
    memory_.swap(other.memory_);
  }
  [[nodiscard]] const std::deque<Entry>& entries() const noexcept { return entries_; }
  /// Multiplies everything in units of the gradient by `factor`: the unit has changed (AMP loss
  /// scale).
  Result<void> scale_residuals(float factor);
  /// sqrt of the sum of squares over this rank's own residuals, without those of its means; NaN
  /// where they cannot be read any more.
  [[nodiscard]] double residual_norm() const noexcept;
  /// Bytes of arrays in the unit of gradients: four per float.
  [[nodiscard]] uint64_t residual_bytes() const noexcept;
  /// Bytes of all other arrays. Both together are a saved state.
  [[nodiscard]] uint64_t state_bytes() const noexcept;

 private:
  std::deque<Entry> entries_;  // never moved: names_ points into it
  std::unordered_set<std::string_view> names_;
  std::vector<Arena> memory_;
};

/// The header of a saved state.
struct StateHeader {
  uint32_t version = 1;
  uint32_t rank = 0;
  uint32_t world = 1;
  uint64_t model_hash = 0;
  uint64_t agreement = 0;
  std::string spec;
  uint32_t node_shards = 1;  ///< of the model, of which this is one
  uint32_t node_shard = 0;
};

/// 1: every bucket was an exchange of its own where the engine adds. 2: short ones travel together.
/// 3: with masters. 4: of a shard of a node.
inline constexpr uint32_t kStateVersion = 2;
inline constexpr uint32_t kStateVersionOfMasters = 3;
inline constexpr uint32_t kStateVersionOfShards = 4;

/// state_corrupt when `count` float32 values at `values`, of any alignment, are not what `entry`
/// may hold.
Result<void> check_values(const Store::Entry& entry, const uint8_t* values, uint64_t count);

/// Is a state that was saved under `saved` the one that `mine` continues? Another version, rank,
/// world, model or spec has its own error (docs/format/ERRORS.md, 80 to 85).
Result<void> accepts(const StateHeader& mine, const StateHeader& saved);

}  // namespace laconic::feedback
