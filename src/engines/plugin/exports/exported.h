// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// From any laconic::Engine to the C table of laconic/plugin.h. A plug-in is a type with
//
//   static constexpr const char* kEngine;
//   static std::string library();
//   static Result<std::unique_ptr<Engine>> open(const laconic_engine_options& options);
//
// and one line: LACONIC_PLUGIN(TYPE).
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "engines/c_step.h"
#include "laconic/engine.h"
#include "laconic/plugin.h"

/// The engine of a plug-in.
struct laconic_engine {
  std::unique_ptr<laconic::Engine> engine;
};

namespace laconic::plugin {

/// Writes what is wrong, cut to fit, no character in two, and gives the code.
inline int32_t told(const Error& error, char* message, uint64_t room) noexcept {
  if (message == nullptr || room == 0) return static_cast<int32_t>(error.code);
  const char* text = error.message.empty() ? errc_name(error.code).data() : error.message.c_str();
  uint64_t length = std::min<uint64_t>(std::strlen(text), room - 1);
  while (length > 0 && (static_cast<uint8_t>(text[length]) & 0xC0U) == 0x80U) --length;
  std::memcpy(message, text, length);
  message[length] = '\0';
  return static_cast<int32_t>(error.code);
}

/// Runs `body`, which gives a Result<void>. Nothing is thrown past here.
template <class Body>
int32_t guarded(char* message, uint64_t room, const Body& body) noexcept {
  try {
    const Result<void> result = body();
    if (!result) return told(result.error(), message, room);
    if (message != nullptr && room != 0) *message = '\0';
    return 0;
  } catch (const std::bad_alloc&) {
    return told({Errc::out_of_memory, {}, {}}, message, room);
  } catch (...) {
    return told({Errc::internal, {}, {}}, message, room);
  }
}

inline Error wrong(const char* what) { return {Errc::invalid_argument, what, {}}; }

/// The caller's struct; missing fields are zero. Its first member is struct_size.
template <class T>
Result<T> read(const T* theirs, size_t required, const char* name) {
  if (theirs == nullptr || theirs->struct_size < required)
    return Error{Errc::invalid_argument, std::string(name) + " is null or too small", {}};
  T own{};
  std::memcpy(&own, theirs, std::min<size_t>(theirs->struct_size, sizeof own));
  return own;
}

inline Result<Step> step_of(const laconic_step& from, const Engine& engine) {
  if (from.kind > LACONIC_MESSAGES) return wrong("a step has an unknown kind");
  if (from.dtype > LACONIC_I32) return wrong("a step has an unknown dtype");
  if (from.reserved != 0 || from.short_sends > 1)
    return wrong("a step has a flag that is not 0 or 1, or a reserved field that is not 0");
  if (from.short_sends != 0 && !engine.caps().short_sends)
    return wrong("the engine has no short sends");
  Step step{.kind = static_cast<StepKind>(from.kind),
            .dtype = static_cast<DType>(from.dtype),
            .short_sends = from.short_sends != 0,
            .tag = from.tag,
            .count = from.count,
            .send = static_cast<uint8_t*>(from.send),
            .recv = static_cast<uint8_t*>(from.recv)};
  const uint32_t world = engine.world();
  if (step.kind == StepKind::all_reduce) {
    if (!engine.caps().can_sum(step.dtype)) return wrong("the engine does not add this dtype");
    if (from.count != 0 && (from.send == nullptr || from.recv == nullptr))
      return wrong("a step's buffer is null");
  } else if (step.kind == StepKind::messages) {
    if (from.message_count >= world && from.message_count != 0)
      return wrong("a step lists more messages than there are peers");
    if (from.message_count != 0 && from.messages == nullptr) return wrong("messages is null");
    // Exchanges hand on their own lists, of which `reserved` is padding.
    step.messages = {reinterpret_cast<const Message*>(from.messages), from.message_count};
    for (const Message& m : step.messages) {
      if (m.peer >= world || m.peer == engine.rank()) return wrong("a message has a wrong peer");
      if ((m.send_bytes != 0 && m.send == nullptr) || (m.recv_room != 0 && m.recv == nullptr))
        return wrong("a message's buffer is null");
    }
  } else {
    if (from.send_counts == nullptr || from.send_offsets == nullptr ||
        from.recv_counts == nullptr || from.recv_offsets == nullptr)
      return wrong("a step's counts or offsets are null");
    step.send_counts = {from.send_counts, world};
    step.send_offsets = {from.send_offsets, world};
    step.recv_counts = {from.recv_counts, world};
    step.recv_offsets = {from.recv_offsets, world};
    const auto any = [](std::span<const uint64_t> counts) {
      return std::any_of(counts.begin(), counts.end(), [](uint64_t n) { return n != 0; });
    };
    if ((any(step.send_counts) && from.send == nullptr) ||
        (any(step.recv_counts) && from.recv == nullptr))
      return wrong("a step's buffer is null");
  }
  return step;
}

template <class Plugin>
struct Table {
  static int32_t open(const laconic_engine_options* options, laconic_engine** out, char* message,
                      uint64_t room) noexcept {
    if (out != nullptr) *out = nullptr;
    return guarded(message, room, [&]() -> Result<void> {
      if (out == nullptr) return wrong("out is null");
      const auto own = read(options, sizeof(laconic_engine_options), "options");
      if (!own) return own.error();
      if (own->reserved != 0) return wrong("options.reserved is not 0");
      if (!(own->timeout >= 0)) return wrong("options.timeout is not a time");
      auto handle = std::make_unique<laconic_engine>();
      auto engine = Plugin::open(*own);
      if (!engine) return std::move(engine).error();
      handle->engine = *std::move(engine);
      *out = handle.release();
      return {};
    });
  }

  static void close(laconic_engine* engine) noexcept { delete engine; }

  static int32_t describe(const laconic_engine* engine, laconic_engine_info* out) noexcept {
    return guarded(nullptr, 0, [&]() -> Result<void> {
      if (engine == nullptr || out == nullptr || out->struct_size < sizeof *out)
        return Errc::invalid_argument;
      const EngineCaps caps = engine->engine->caps();
      out->rank = engine->engine->rank();
      out->world = engine->engine->world();
      out->sums = caps.sums;
      out->short_sends = caps.short_sends ? 1 : 0;
      out->reserved = 0;
      return {};
    });
  }

  static int32_t start(laconic_engine* engine, const laconic_step* steps, uint32_t step_size,
                       uint32_t count, uint64_t* ticket, char* message, uint64_t room) noexcept {
    return guarded(message, room, [&]() -> Result<void> {
      if (engine == nullptr || ticket == nullptr || (steps == nullptr && count != 0))
        return wrong("engine, steps or ticket is null");
      if (step_size < offsetof(laconic_step, tag)) return wrong("step_size is too small");
      if (count > kMaxBatch) return wrong("a batch has too many steps");
      std::array<Step, kMaxBatch> batch;
      for (uint32_t i = 0; i < count; ++i) {
        laconic_step own{};
        std::memcpy(&own, reinterpret_cast<const uint8_t*>(steps) + uint64_t{i} * step_size,
                    std::min<size_t>(step_size, sizeof own));
        auto step = step_of(own, *engine->engine);
        if (!step) return std::move(step).error();
        batch[i] = *step;
      }
      const auto started = engine->engine->start({batch.data(), count});
      if (!started) return started.error();
      *ticket = started->number;
      return {};
    });
  }

  static int32_t wait(laconic_engine* engine, uint64_t ticket, double timeout, char* message,
                      uint64_t room) noexcept {
    return guarded(message, room, [&]() -> Result<void> {
      if (engine == nullptr) return wrong("engine is null");
      if (std::isnan(timeout)) return wrong("timeout is not a time");
      return engine->engine->wait({ticket}, deadline_in(timeout));
    });
  }

  static Deadline deadline_in(double seconds) {
    constexpr double kLong = 1e8;  // three years
    const std::chrono::duration<double> time(std::clamp(seconds, 0.0, kLong));
    return std::chrono::steady_clock::now() +
           std::chrono::duration_cast<std::chrono::steady_clock::duration>(time);
  }
};

/// options.timeout, or its default.
inline std::chrono::milliseconds timeout_of(const laconic_engine_options& options) {
  if (options.timeout == 0) return std::chrono::minutes(30);
  return std::chrono::milliseconds(
      static_cast<int64_t>(std::clamp(options.timeout * 1000, 1.0, 1e11)));
}

template <class Plugin>
const laconic_plugin* table() noexcept try {
  static const std::string library = Plugin::library();
  static const laconic_plugin plugin{
      sizeof(laconic_plugin),   LACONIC_PLUGIN_VERSION, Plugin::kEngine,
      library.c_str(),          &Table<Plugin>::open,   &Table<Plugin>::close,
      &Table<Plugin>::describe, &Table<Plugin>::start,  &Table<Plugin>::wait};
  return &plugin;
} catch (...) {
  return nullptr;
}

}  // namespace laconic::plugin

#define LACONIC_PLUGIN(TYPE)                                 \
  extern "C" const laconic_plugin* laconic_plugin_v1(void) { \
    return laconic::plugin::table<TYPE>();                   \
  }
