// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/succession.h"

#include <algorithm>
#include <cmath>

namespace laconic::collective {
namespace {

bool all_zero(const float* values, uint64_t count) {
  return std::all_of(values, values + count, [](float x) { return x == 0.0F; });
}

/// The piece of a parameter that covers the same range; null: it is cut in another way.
const RankPiece* same_piece(const RankParameter& parameter, const RankPiece& piece) {
  const Unit& unit = piece.send.unit;
  const auto at = std::ranges::find_if(parameter.pieces, [&](const RankPiece& other) {
    return other.send.unit.offset == unit.offset && other.send.unit.count == unit.count;
  });
  return at == parameter.pieces.end() ? nullptr : &*at;
}

/// The array that continues the residual of an owned mean; null: none.
float* mean_residual(const RankParameter& parameter, const RankPiece& piece) {
  const RankPiece* const same = same_piece(parameter, piece);
  return same == nullptr ? nullptr : same->mean.memory.values;
}

/// `own`: where the residual of the piece begins.
void take_residual_of_mean(const RankPiece& piece, float world, float* own) {
  for (uint64_t k = 0; k < piece.mean.unit.count; ++k) {
    const float sum = own[k] + world * piece.mean.memory.values[k];
    if (std::isfinite(sum)) own[k] = sum;
  }
}

/// True if codecs are the same and settings differ only in what control policies change: state for
/// a smaller value is a prefix of that for a larger one.
bool keeps_state(const Spec& before, const Spec& after) {
  if (&before.codec() != &after.codec()) return false;
  return std::ranges::all_of(before.codec().fields, [&](const Field& f) {
    return f.actuator.marked || f.get(before.params()) == f.get(after.params());
  });
}

void copy_state(std::span<const float> before, std::span<float> after) {
  std::copy_n(before.begin(), std::min(before.size(), after.size()), after.begin());
}

void hand_over(const RankParameter& before, const RankParameter& after, float world) {
  const feedback::Memory& from = before.memory;
  const feedback::Memory& to = after.memory;
  const bool residuals = from.residual() != nullptr && to.residual() != nullptr;
  const bool means =
      from.values != nullptr && to.values != nullptr && from.settings.kind == to.settings.kind;
  if (residuals || means) std::copy_n(from.values, before.count, to.values);
  if (from.momentum != nullptr && to.momentum != nullptr)
    std::copy_n(from.momentum, before.count, to.momentum);
  for (const RankPiece& piece : before.pieces) {
    const float* const owned = piece.mean.memory.values;
    if (float* const stays = mean_residual(after, piece); owned != nullptr && stays != nullptr)
      std::copy_n(owned, piece.mean.unit.count, stays);
    else if (owned != nullptr && to.residual() != nullptr)
      take_residual_of_mean(piece, world, to.residual() + (piece.mean.unit.offset - before.first));
    const RankPiece* const same = same_piece(after, piece);
    if (same == nullptr) continue;
    if (keeps_state(before.codec->spec(), after.codec->spec()))
      copy_state(piece.send_state, same->send_state);
    if (piece.down != nullptr && same->down != nullptr &&
        keeps_state(piece.down->spec(), same->down->spec()))
      copy_state(piece.mean_state, same->mean_state);
  }
}

bool strands(const RankParameter& before, const RankParameter& after) {
  if (after.memory.residual() != nullptr) return false;
  const float* const residual = before.memory.residual();
  const auto is_rest = [&] { return before.rest == rest_of(before); };
  if (residual != nullptr && !all_zero(residual, before.count) && !is_rest()) return true;
  const bool owned = std::ranges::any_of(before.pieces, [&](const RankPiece& piece) {
    return piece.mean.memory.values != nullptr && mean_residual(after, piece) == nullptr &&
           !all_zero(piece.mean.memory.values, piece.mean.unit.count);
  });
  return owned && (residual != nullptr || !is_rest());
}

}  // namespace

std::optional<uint32_t> stranded(const RankState& before, const RankState& after) noexcept {
  const auto count = static_cast<uint32_t>(before.model().parameters().size());
  for (uint32_t i = 0; i < count; ++i) {
    if (strands(before.parameter(i), after.parameter(i))) return i;
  }
  return {};
}

void hand_over(const RankState& before, const RankState& after) noexcept {
  const auto count = static_cast<uint32_t>(before.model().parameters().size());
  for (uint32_t i = 0; i < count; ++i) {
    hand_over(before.parameter(i), after.parameter(i), static_cast<float>(before.world()));
  }
}

}  // namespace laconic::collective
