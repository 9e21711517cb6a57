// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/joined_layouts.h"

#include <algorithm>
#include <utility>

namespace laconic::session {

using collective::LayoutView;

JoinedLayouts::JoinedLayouts(size_t parameters) : room_(parameters) {
  for (Step* step : {&now_, &before_, &oldest_}) {
    step->parameters.reserve(room_);
    step->offsets.reserve(room_);
    step->entries.reserve(room_);
  }
}

LayoutView JoinedLayouts::Step::view(const Entry& entry) const {
  const size_t count = entry.end - entry.begin;
  return {std::span(parameters).subspan(entry.begin, count),
          std::span(offsets).subspan(entry.begin, count), entry.elements};
}

bool JoinedLayouts::Step::has(const LayoutView& layout, DType dtype) const {
  return std::ranges::any_of(entries, [&](const Entry& entry) {
    return entry.dtype == dtype && same(view(entry), layout);
  });
}

void JoinedLayouts::Step::clear() noexcept {
  parameters.clear();
  offsets.clear();
  entries.clear();
}

bool JoinedLayouts::same(const LayoutView& a, const LayoutView& b) noexcept {
  return a.elements == b.elements && std::ranges::equal(a.parameters, b.parameters) &&
         std::ranges::equal(a.offsets, b.offsets);
}

void JoinedLayouts::add(const LayoutView& layout, DType dtype, Session& session) {
  if (now_.has(layout, dtype)) return;
  // A parameter may come twice where an iteration was broken off: its step ends here then.
  if (now_.parameters.size() + layout.parameters.size() > room_) end_step(session);
  const size_t begin = now_.parameters.size();
  now_.parameters.insert(now_.parameters.end(), layout.parameters.begin(), layout.parameters.end());
  now_.offsets.insert(now_.offsets.end(), layout.offsets.begin(), layout.offsets.end());
  now_.entries.push_back({begin, now_.parameters.size(), layout.elements, dtype});
}

void JoinedLayouts::end_step(Session& session) {
  for (const Step::Entry& entry : oldest_.entries) {
    const LayoutView layout = oldest_.view(entry);
    const bool comes = now_.has(layout, entry.dtype) || before_.has(layout, entry.dtype);
    if (!comes) session.release(layout, entry.dtype);
  }
  std::swap(before_, oldest_);
  std::swap(now_, before_);
  now_.clear();
}

void JoinedLayouts::clear() noexcept {
  for (Step* step : {&now_, &before_, &oldest_}) step->clear();
}

}  // namespace laconic::session
