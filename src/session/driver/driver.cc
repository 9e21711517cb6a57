// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/driver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "session/without_throwing.h"

namespace laconic::session {
namespace {

using collective::Bucket;
using collective::LayoutView;

constexpr uint32_t kMostInFlight = collective::kMaxWindow;

uint8_t* at(const Bucket& bucket, uint64_t element) {
  auto* const bytes = static_cast<uint8_t*>(bucket.buffer);
  return bytes == nullptr ? nullptr : bytes + element * dtype_size(bucket.dtype);
}

}  // namespace

void LoadMemory::size(const device::Staging* gpu, uint64_t bytes) {
  gpu_ = gpu;
  bytes_ = bytes;
  if (gpu == nullptr) here_.reset(new uint8_t[bytes]);
}

Result<void> LoadMemory::reserve() {
  if (gpu_ == nullptr) return {};
  return there_.grow(gpu_->gpu(), device::Memory::Where::device, bytes_);
}

Result<void> LoadMemory::copy(uint8_t* to, const uint8_t* from, uint64_t bytes) const {
  if (bytes == 0) return {};
  if (gpu_ != nullptr)
    return from != nullptr ? gpu_->copy(to, from, bytes) : gpu_->clear(to, bytes);
  from != nullptr ? std::memcpy(to, from, bytes) : std::memset(to, 0, bytes);
  return {};
}

Driver::Driver(Session& session, Engine& engine, std::chrono::milliseconds timeout,
               Listener* listener)
    : session_(&session),
      listener_(listener),
      window_(
          session, engine, timeout, [this](uint32_t n, const Error* why) { ended(n, why); },
          listener),
      joining_(session.model()),
      layouts_(session.model().parameters().size()),
      change_(session, window_),
      turns_(session, window_),
      loads_(kMostInFlight + 2) {
  const size_t parameters = session.model().parameters().size();
  parameters_.reserve(parameters);
  offsets_.reserve(parameters);
  part_offsets_.resize(parameters);
  if (session.model().options().owner_turns) loads_.resize(loads_.size() + parameters);
  // Memory that no step has touched is none.
  for (Load& load : loads_)
    load.memory.size(session.active().asked.gpu.get(), joining_.room() * sizeof(float));
  waiting_ = take_load();
}

/// Buckets that do not fit are sent uncut: the session reports the error to all ranks.
bool Driver::fits(const LayoutView& whole) const noexcept {
  const size_t parameters = part_offsets_.size();
  return whole.parameters.size() <= parameters && whole.offsets.size() == whole.parameters.size() &&
         std::ranges::is_sorted(whole.offsets) &&
         (whole.offsets.empty() || whole.offsets.back() <= whole.elements) &&
         std::ranges::all_of(whole.parameters, [&](uint32_t p) { return p < parameters; });
}

/// Valid until the next call.
LayoutView Driver::part_of(const LayoutView& whole, size_t begin, size_t end) {
  const uint64_t first = begin == 0 ? 0 : whole.offsets[begin];
  const uint64_t last = end < whole.parameters.size() ? whole.offsets[end] : whole.elements;
  for (size_t i = begin; i < end; ++i) part_offsets_[i - begin] = whole.offsets[i] - first;
  return {whole.parameters.subspan(begin, end - begin), std::span(part_offsets_).first(end - begin),
          last - first};
}

Result<void> Driver::submit(const Bucket& bucket, const LayoutView& whole,
                            const Submission& given) {
  Submission how = given;
  if (lost_ && how.trouble == nullptr) how.trouble = &*lost_;
  const uint64_t bytes = how.cuts && fits(whole) ? session_->model().options().part : 0;
  uint32_t parts = 0;
  for (size_t i = 0; parts == 0 || i < whole.parameters.size(); ++parts)
    i = collective::end_of_part(whole, i, bytes);
  if (parts == 1) return submit_part(bucket, whole, how, parts);
  session_->count({.parts = parts});
  Result<void> first;
  size_t begin = 0;
  for (uint32_t number = 0; number < parts; ++number) {
    const size_t end = collective::end_of_part(whole, begin, bytes);
    Bucket part = bucket;
    part.buffer = at(bucket, begin == 0 ? 0 : whole.offsets[begin]);
    part.index = bucket.index | number << 16U;
    // After a failure of the engine, too: gradients go into the residuals.
    auto submitted = submit_part(part, part_of(whole, begin, end), how, parts);
    if (!submitted && first) first = std::move(submitted);
    begin = end;
  }
  return first;
}

Result<void> Driver::submit_part(const Bucket& bucket, const LayoutView& layout,
                                 const Submission& how, uint32_t parts) {
  const JoiningPart part{layout, bucket.dtype, bucket.step};
  const bool brought = bucket.buffer != nullptr || how.trouble != nullptr;
  const bool waits = how.joins && brought && !bucket.raw && !window_.failed() && fits(layout) &&
                     joining_.takes(part);
  Result<void> first;
  if (!joining_.empty() && !(waits && joining_.goes_with(part))) first = send();
  if (waits) {
    add(loads_[waiting_], bucket, layout, how, parts);
    parameters_.insert(parameters_.end(), layout.parameters.begin(), layout.parameters.end());
    for (const uint64_t offset : layout.offsets) offsets_.push_back(elements_ + offset);
    elements_ += layout.elements;
    auto sent = joining_.add(part) ? send() : Result<void>();
    return first ? std::move(sent) : std::move(first);
  }
  const uint32_t number = take_load();
  add(loads_[number], bucket, layout, how, parts);
  auto sent = window_.submit(bucket, layout, number, how.trouble);
  return first ? std::move(sent) : std::move(first);
}

uint32_t Driver::take_load() {
  const auto free = std::ranges::find_if(loads_, [](const Load& load) { return !load.taken; });
  free->taken = true;
  return static_cast<uint32_t>(free - loads_.begin());
}

void Driver::add(Load& load, const Bucket& bucket, const LayoutView& layout, const Submission& how,
                 uint32_t parts) {
  load.dtype = bucket.dtype;
  load.step = bucket.step;
  load.tokens[load.count] = how.token;
  load.parts[load.count] = parts;
  load.pieces[load.count++] = {static_cast<uint8_t*>(bucket.buffer), layout.elements,
                               static_cast<uint32_t>(layout.parameters.size()), bucket.index};
  if (how.trouble != nullptr && !load.trouble) load.trouble = copy_of(*how.trouble);
}

/// Sends the waiting buckets without the next one.
Result<void> Driver::send() {
  if (joining_.empty()) return {};
  joining_.clear();
  const uint32_t number = waiting_;
  auto sent =
      loads_[number].count > 1 && !window_.failed() ? send_together(number) : send_apart(number);
  parameters_.clear();
  offsets_.clear();
  elements_ = 0;
  waiting_ = take_load();
  return sent;
}

Result<void> Driver::send_together(uint32_t number) {
  Load& load = loads_[number];
  const size_t width = dtype_size(load.dtype);
  Result<void> copied = load.memory.reserve();
  uint8_t* place = load.memory.at();
  for (const LoadedPart& piece : std::span(load.pieces).first(load.count)) {
    if (!copied) break;
    const size_t bytes = piece.elements * width;
    // Zeros for a bucket that did not come: the exchange fails, and residuals keep zeros of it.
    copied = load.memory.copy(place, piece.buffer, bytes);
    place += bytes;
  }
  if (!copied && !load.trouble) load.trouble = copied.error();
  session_->count({.coalesced = load.count});
  const LayoutView layout{parameters_, offsets_, elements_};
  layouts_.add(layout, load.dtype, *session_);
  Bucket bucket;
  bucket.buffer = copied ? load.memory.at() : nullptr;
  bucket.dtype = load.dtype;
  bucket.step = load.step;
  bucket.index = load.pieces[0].index;
  auto sent = window_.submit(bucket, layout, number, load.trouble ? &*load.trouble : nullptr);
  if (copied) return sent;
  const auto settings = session_->hold();
  over_pieces(load, [&](const Bucket& piece, const LayoutView& own, uint32_t) {
    if (piece.buffer != nullptr) session_->active().keep(piece, own);
  });
  return sent;
}

/// body(bucket, layout, index) for the buckets of a load, while it waits.
template <class Body>
void Driver::over_pieces(const Load& load, Body&& body) {
  size_t begin = 0;
  uint64_t base = 0;
  for (uint32_t i = 0; i < load.count; ++i) {
    const LoadedPart piece = load.pieces[i];
    const Bucket bucket{
        .buffer = piece.buffer, .dtype = load.dtype, .step = load.step, .index = piece.index};
    const auto offsets = std::span(offsets_).subspan(begin, piece.parameters);
    for (uint64_t& offset : offsets) offset -= base;
    const auto parameters = std::span(parameters_).subspan(begin, piece.parameters);
    body(bucket, LayoutView{parameters, offsets, piece.elements}, i);
    begin += piece.parameters;
    base += piece.elements;
  }
}

/// One piece; or several, when the engine has failed, which the session keeps.
Result<void> Driver::send_apart(uint32_t number) {
  const Load& load = loads_[number];
  const uint32_t count = load.count;
  Result<void> first;
  over_pieces(load, [&](const Bucket& bucket, const LayoutView& layout, uint32_t i) {
    const bool lacks = load.trouble && (count == 1 || bucket.buffer == nullptr);
    uint32_t own = number;
    if (count > 1) {
      own = take_load();
      add(loads_[own], bucket, layout, {load.tokens[i], nullptr}, load.parts[i]);
    }
    auto sent = window_.submit(bucket, layout, own, lacks ? &*load.trouble : nullptr);
    if (!sent && first) first = std::move(sent);
  });
  if (count > 1) loads_[number].give_back();
  return first;
}

void Driver::ended(uint32_t number, const Error* why) {
  Load& load = loads_[number];
  const std::span<const LoadedPart> pieces = std::span(load.pieces).first(load.count);
  Result<void> copied;
  if (pieces.size() > 1 && why == nullptr) {
    const uint8_t* place = load.memory.at();
    for (const LoadedPart& piece : pieces) {
      const size_t bytes = piece.elements * dtype_size(load.dtype);
      if (piece.buffer != nullptr && copied) copied = load.memory.copy(piece.buffer, place, bytes);
      place += bytes;
    }
    if (!copied) {
      if (!lost_) lost_ = copied.error();
      window_.note(copied.error());
      why = &copied.error();
    }
  }
  if (listener_ != nullptr) {
    listener_->ended(
        {std::span(load.tokens).first(load.count), std::span(load.parts).first(load.count), why});
  }
  load.give_back();
}

void Driver::Load::give_back() noexcept {
  count = 0;
  taken = false;
  trouble.reset();
}

Result<void> Driver::drain() {
  auto sent = send();
  auto done = window_.drain();
  return sent ? std::move(done) : std::move(sent);
}

Result<void> Driver::finish() {
  auto sent = send();
  auto done = window_.finish();
  layouts_.end_step(*session_);
  return sent ? std::move(done) : std::move(sent);
}

void Driver::break_off(const Error& why) {
  window_.break_off(why);
  (void)send();
}

void Driver::release(const LayoutView& whole, DType dtype) {
  const uint64_t bytes = fits(whole) ? session_->model().options().part : 0;
  session_->release(whole, dtype);
  if (bytes == 0) return;
  for (size_t begin = 0; begin < whole.parameters.size();) {
    const size_t end = collective::end_of_part(whole, begin, bytes);
    session_->release(part_of(whole, begin, end), dtype);
    begin = end;
  }
}

Result<bool> Driver::set(const SettingsChange& change, const Error* trouble) {
  const Error waits{Errc::exchange_order, "set: buckets are still queued",
                    "call set() between two steps"};
  auto done = change_.set(change, trouble == nullptr && !joining_.empty() ? &waits : trouble);
  if (done && *done) take_settings();
  return done;
}

Result<bool> Driver::set_what_waits() {
  if (!idle()) return false;
  auto done = change_.set_what_waits();
  if (done && *done) take_settings();
  return done;
}

void Driver::take_settings() {
  joining_.refresh(session_->model());
  layouts_.clear();
}

void number_exchanges(Joining joining, std::span<const JoiningPart> buckets, bool joins,
                      std::span<uint32_t> exchange_of) {
  joining.clear();
  uint32_t next = 0;
  size_t at = 0;
  for (const JoiningPart& bucket : buckets) {
    const LayoutView& whole = bucket.layout;
    for (size_t begin = 0; begin < whole.parameters.size();) {
      const size_t end = collective::end_of_part(whole, begin, joining.part());
      const uint64_t first = begin == 0 ? 0 : whole.offsets[begin];
      const uint64_t last = end < whole.parameters.size() ? whole.offsets[end] : whole.elements;
      const auto parameters = whole.parameters.subspan(begin, end - begin);
      const JoiningPart part{{parameters, {}, last - first}, bucket.dtype, bucket.step};
      const bool waits = joins && joining.takes(part);
      if (!joining.empty() && !(waits && joining.goes_with(part))) {
        joining.clear();
        ++next;
      }
      std::fill_n(exchange_of.begin() + static_cast<ptrdiff_t>(at), end - begin, next);
      at += end - begin;
      if (!waits || joining.add(part)) {
        joining.clear();
        ++next;
      }
      begin = end;
    }
  }
}

}  // namespace laconic::session
