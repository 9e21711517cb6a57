// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "capi/engine_table.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "engines/c_step.h"

namespace laconic::capi {
namespace {

constexpr size_t kRoom = 1024;  // of a message
using Message = std::array<char, kRoom>;

Errc listed(int32_t code) noexcept {
  const auto known = static_cast<Errc>(code);
  return known != Errc::ok && errc_name(known) != "unknown" ? known : Errc::internal;
}

Error failed(int32_t code, Message& message) {
  message.back() = '\0';
  Error error{listed(code), {}, {}};
  try {
    error.message = message.data();
    error.hint = "restart from the last checkpoint";
  } catch (const std::bad_alloc&) {  // the code alone has to do: payloads must be put back
  }
  return error;
}

/// A callback of an interpreter that was interrupted gives 0, and nothing else.
Error unfinished(const char* callback) {
  Message message{};
  std::snprintf(message.data(), kRoom, "the engine's %s was interrupted", callback);
  return failed(static_cast<int32_t>(Errc::engine_failed), message);
}

}  // namespace

Result<void> TableEngine::run(std::span<const Step> batch) {
  auto ticket = start(batch);
  if (!ticket) return std::move(ticket).error();
  return wait(*ticket, std::chrono::steady_clock::now() + timeout());
}

Result<Ticket> TableEngine::start(std::span<const Step> batch) {
  std::array<laconic_step, kMaxBatch> steps;
  std::ranges::transform(batch, steps.begin(), engines::to_c);
  Message message{};
  Ticket ticket{~uint64_t{0}};
  const int32_t code =
      table_.start(table_.context, steps.data(), sizeof(laconic_step),
                   static_cast<uint32_t>(batch.size()), &ticket.number, message.data(), kRoom);
  if (code != 0) return failed(code, message);
  if (ticket.number == ~uint64_t{0}) return unfinished("start");
  return ticket;
}

Result<void> TableEngine::wait(Ticket ticket, Deadline deadline) {
  const std::chrono::duration<double> left = deadline - std::chrono::steady_clock::now();
  Message message{};
  constexpr double kNever = -1;
  if (table_.completed != nullptr) *table_.completed = kNever;
  const int32_t code = table_.wait(table_.context, ticket.number, std::max(left.count(), 0.0),
                                   message.data(), kRoom);
  if (code != 0) return failed(code, message);
  if (table_.completed != nullptr && *table_.completed == kNever) return unfinished("wait");
  return {};
}

void TableEngine::settle(Ticket ticket) noexcept {
  if (table_.settle != nullptr) table_.settle(table_.context, ticket.number);
}

double TableEngine::completed() const noexcept {
  return table_.completed == nullptr ? 0 : *table_.completed;
}

std::chrono::milliseconds TableEngine::timeout() const noexcept {
  if (table_.timeout == 0) return std::chrono::minutes(30);
  return std::chrono::milliseconds(static_cast<int64_t>(std::min(table_.timeout * 1000, 1e11)));
}

int32_t read_table(const laconic_engine_table* theirs, laconic_engine_table* table) {
  if (const int32_t bad = read_struct(theirs, "engine", table); bad != 0) return bad;
  if (table->start == nullptr || table->wait == nullptr) return null_argument("start and wait");
  if (table->reserved != 0) return fail(Errc::invalid_argument, "the engine's reserved must be 0");
  if (table->world == 0 || table->rank >= table->world)
    return fail(Errc::invalid_argument, "the engine's rank must be below its world");
  if (!(table->timeout >= 0))
    return fail(Errc::invalid_argument, "timeout must be 0 or more seconds");
  return 0;
}

Error to_error(const laconic_failure& failure) {
  Error error{listed(failure.code), {}, {}};
  try {
    if (failure.message != nullptr) error.message = failure.message;
    if (failure.hint != nullptr) error.hint = failure.hint;
  } catch (const std::bad_alloc&) {  // report at least the code
  }
  return error;
}

}  // namespace laconic::capi
