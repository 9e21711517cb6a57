// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Drivers: buckets in, means out, over an engine of the caller's.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <utility>

#include "capi/buckets.h"
#include "capi/engine_table.h"
#include "capi/handles.h"
#include "capi/settings.h"
#include "session/driver/agreement.h"
#include "session/driver/driver.h"
#include "session/driver/node_link.h"

/// The caller's callbacks around a driver.
struct laconic_driver final : laconic::session::Listener {
  laconic_driver(laconic_session& own, const laconic_driver_options& theirs,
                 const laconic_engine_table& table, const laconic_engine_table* of_node)
      : options(theirs),
        session(own.session.get()),
        engine(table, session->model().options().caps),
        driver(*session, engine, engine.timeout(), this) {
    driver.name_set("set");
    if (of_node == nullptr) return;
    inside.emplace(*of_node, laconic::EngineCaps{});
    const std::span<const uint32_t> ranks(theirs.ranks,
                                          theirs.ranks == nullptr ? 0 : of_node->world);
    node.emplace(*inside, inside->timeout(), laconic::session::kAgreementBytes, ranks);
    driver.set_node(&*node);
  }
  double completed() noexcept override { return engine.completed(); }
  void settle(laconic::Ticket ticket) noexcept override { engine.settle(ticket); }
  void traced(laconic::session::Phase phase, uint64_t step, uint32_t index, double begin,
              double end) noexcept override {
    if (options.traced != nullptr)
      options.traced(options.context, static_cast<uint32_t>(phase), step, index, begin, end);
  }
  void ended(const laconic::session::Ending& ending) noexcept override {
    const laconic::Error* const why = ending.why;
    const laconic_ending told{sizeof told,
                              why == nullptr ? 0 : static_cast<int32_t>(why->code),
                              why == nullptr ? "" : why->message.c_str(),
                              why == nullptr ? "" : why->hint.c_str(),
                              static_cast<uint32_t>(ending.tokens.size()),
                              0,
                              ending.tokens.data(),
                              ending.parts.data()};
    options.ended(options.context, &told);
  }

  laconic_driver_options options;
  laconic::session::Session* session;
  laconic::capi::TableEngine engine;
  laconic::session::Driver driver;
  std::optional<laconic::capi::TableEngine> inside;
  std::optional<laconic::session::NodeLink> node;
  std::vector<laconic_owned_range> ranges;  // of the turn
  std::atomic_flag in_use;
  pid_t process = ::getpid();
};

namespace {

using laconic::Errc;
using laconic::Error;
using laconic::Result;
using laconic::capi::fail;
using laconic::capi::guarded;
using laconic::capi::null_argument;
using laconic::capi::read_bucket;
using laconic::capi::read_layout;
using laconic::capi::read_struct;
using laconic::capi::to_bucket;
using laconic::capi::to_error;
using laconic::capi::to_layout;

/// Runs `body(driver)`, unless another thread, or a callback, is in there. What a forked child sent
/// would arrive as its parent's.
template <class Body>
int32_t alone(laconic_driver* driver, Body&& body) {
  return guarded([&]() -> int32_t {
    if (driver == nullptr) return null_argument("driver");
    if (driver->process != ::getpid()) {
      return fail(Errc::unsupported, "this process was forked from the one that created the driver",
                  "call it in the original process");
    }
    if (driver->in_use.test_and_set(std::memory_order_acquire)) {
      return fail(Errc::exchange_order, "the driver is in use",
                  "call it from one thread at a time, and not from a callback");
    }
    struct Leave {
      std::atomic_flag& flag;
      ~Leave() { flag.clear(std::memory_order_release); }
    } leave{driver->in_use};
    return body(driver->driver);
  });
}

int32_t given(Result<void> done) { return done ? 0 : fail(std::move(done).error()); }

int32_t check_flags(uint32_t flags) {
  if ((flags & ~uint32_t{LACONIC_SUBMIT_APART | LACONIC_SUBMIT_WHOLE}) == 0) return 0;
  return fail(Errc::invalid_argument, "submit has an unknown flag");
}

std::optional<Error> trouble_of(const laconic_failure* failure) {
  if (failure == nullptr) return {};
  return to_error(*failure);
}

std::optional<uint32_t> named_by(const laconic_failure& failure) {
  if (failure.rank == 0) return {};
  return failure.rank - 1;
}

laconic_owned_range to_range(const laconic::collective::OwnedRange& r) {
  return {r.parameter, 0, r.offset, r.count, r.mean, r.master};
}

/// An owning copy of `change`.
laconic::SettingsChange copied(const laconic::session::Change& change) {
  laconic::SettingsChange own;
  if (change.spec) own.spec = *change.spec;
  if (change.rules) own.rules.emplace(change.rules->begin(), change.rules->end());
  if (change.control) own.control = *change.control;
  if (change.plan) own.plan = *change.plan;
  if (change.down) own.down = *change.down;
  return own;
}

Result<void> set(laconic::session::Driver& driver, const laconic_settings* settings,
                 std::optional<Error> trouble, uint32_t* waits) {
  laconic::SettingsChange change;
  try {
    std::vector<laconic::Rule> rules;
    laconic::session::Change theirs;
    const int32_t bad = trouble ? 0 : laconic::capi::read_settings(settings, &rules, &theirs);
    if (bad != 0) trouble = {static_cast<Errc>(bad), laconic_last_message(), laconic_last_hint()};
    change = copied(theirs);
  } catch (const std::bad_alloc&) {  // the other ranks are about to compare cards
    trouble = {Errc::out_of_memory, {}, {}};
  }
  auto done = driver.set(change, trouble ? &*trouble : nullptr);
  if (!done) return std::move(done).error();
  *waits = *done ? 0 : 1;
  return {};
}

}  // namespace

extern "C" {

int32_t laconic_agree(const laconic_engine_table* engine, const laconic_session* session,
                      const laconic_failure* failure, const char* what, void* gathered) {
  return guarded([&]() -> int32_t {
    if (what == nullptr || gathered == nullptr) return null_argument("what and gathered");
    if (session == nullptr && failure == nullptr) return null_argument("session and failure");
    laconic_engine_table table;
    if (const int32_t bad = laconic::capi::read_table(engine, &table); bad != 0) return bad;
    laconic::session::Cards cards(table.world);
    laconic::capi::TableEngine own(table, {});
    const auto card = failure != nullptr
                          ? laconic::session::failure_card(to_error(*failure), named_by(*failure))
                          : laconic::session::agreement_card(session->session->active());
    if (auto done = cards.gather(card, own, own.timeout()); !done) return given(std::move(done));
    std::memcpy(gathered, cards.all().data(), cards.all().size());
    return given(laconic::session::check_failures(cards.all(), what));
  });
}

int32_t laconic_driver_create(laconic_session* session, const laconic_driver_options* options,
                              laconic_driver** out) {
  return guarded([&]() -> int32_t {
    if (out != nullptr) *out = nullptr;
    if (session == nullptr || out == nullptr) return null_argument("session and out");
    laconic_driver_options own;
    if (const int32_t bad = read_struct(options, "options", &own); bad != 0) return bad;
    if (own.ended == nullptr) return null_argument("options.ended");
    laconic_engine_table table;
    if (const int32_t bad = laconic::capi::read_table(own.engine, &table); bad != 0) return bad;
    const auto& model = session->session->model().options();
    if (table.rank != model.rank || table.world != model.world) {
      return fail(Errc::invalid_argument, "the engine's rank or world differs from the session's",
                  "create both with the same rank and world");
    }
    laconic_engine_table inside;
    if (own.inside != nullptr) {
      if (const int32_t bad = laconic::capi::read_table(own.inside, &inside); bad != 0) return bad;
      if (inside.rank != model.node_shard || inside.world != model.node_shards) {
        return fail(Errc::invalid_argument,
                    "the rank or world of options.inside differs from the session's shard",
                    "inside: the ranks of this rank's node, in the order of shards");
      }
    }
    *out = new laconic_driver(*session, own, table, own.inside == nullptr ? nullptr : &inside);
    return 0;
  });
}

void laconic_driver_destroy(laconic_driver* driver) { delete driver; }

int32_t laconic_driver_submit(laconic_driver* driver, const laconic_bucket* bucket, uint32_t flags,
                              uint64_t token, const laconic_failure* failure) {
  return alone(driver, [&](auto& own) -> int32_t {
    laconic_bucket b;
    if (const int32_t bad = check_flags(flags); bad != 0) return bad;
    const int32_t bad = failure == nullptr ? read_bucket(bucket, &b) : read_layout(bucket, &b);
    if (bad != 0) return bad;
    const auto trouble = trouble_of(failure);
    return given(
        own.submit(to_bucket(b), to_layout(b),
                   {token, trouble ? &*trouble : nullptr, (flags & LACONIC_SUBMIT_APART) == 0,
                    (flags & LACONIC_SUBMIT_WHOLE) == 0}));
  });
}

int32_t laconic_driver_drain(laconic_driver* driver) {
  return alone(driver, [](auto& own) { return given(own.drain()); });
}

int32_t laconic_driver_finish(laconic_driver* driver) {
  return alone(driver, [](auto& own) { return given(own.finish()); });
}

int32_t laconic_driver_break_off(laconic_driver* driver, const laconic_failure* failure) {
  return alone(driver, [&](auto& own) -> int32_t {
    if (failure == nullptr) return null_argument("failure");
    own.break_off(to_error(*failure));
    return 0;
  });
}

int32_t laconic_driver_release(laconic_driver* driver, const laconic_bucket* bucket) {
  return alone(driver, [&](auto& own) -> int32_t {
    laconic_bucket b;
    if (const int32_t bad = read_layout(bucket, &b); bad != 0) return bad;
    own.release(to_layout(b), static_cast<laconic::DType>(b.dtype));
    return 0;
  });
}

int32_t laconic_driver_set(laconic_driver* driver, const laconic_settings* settings,
                           const laconic_failure* failure, uint32_t* waits) {
  return alone(driver, [&](auto& own) -> int32_t {
    if (waits == nullptr) return null_argument("waits");
    *waits = 0;
    return given(set(own, settings, trouble_of(failure), waits));
  });
}

int32_t laconic_driver_set_what_waits(laconic_driver* driver, uint32_t* set) {
  return alone(driver, [&](auto& own) -> int32_t {
    if (set == nullptr) return null_argument("set");
    *set = 0;
    auto done = own.set_what_waits();
    if (!done) return fail(std::move(done).error());
    *set = *done ? 1 : 0;
    return 0;
  });
}

int32_t laconic_driver_set_replicas(laconic_driver* driver, const laconic_replica* replicas,
                                    uint32_t count, uint32_t begins) {
  return alone(driver, [&](laconic::session::Driver& own) -> int32_t {
    if (replicas == nullptr && count != 0) return null_argument("replicas");
    if (begins > 1) return fail(Errc::invalid_argument, "begins must be 0 or 1");
    std::vector<laconic::collective::Replica> theirs;
    for (const laconic_replica& r : std::span(replicas, count)) {
      if (r.reserved != 0) return fail(Errc::invalid_argument, "a replica's reserved must be 0");
      if (r.dtype > LACONIC_BF16)
        return fail(Errc::dtype_unsupported, "a replica's dtype must be f32, f16 or bf16");
      theirs.push_back({r.values, static_cast<laconic::DType>(r.dtype)});
    }
    return given(own.turns().set_replicas(theirs, begins != 0));
  });
}

int32_t laconic_driver_owned(laconic_driver* driver, laconic_owned_range* ranges, uint32_t capacity,
                             uint32_t* count) {
  return alone(driver, [&](laconic::session::Driver& own) -> int32_t {
    if (count == nullptr || (ranges == nullptr && capacity != 0))
      return null_argument("ranges and count");
    const auto owned = own.turns().owned();
    *count = static_cast<uint32_t>(owned.size());
    const size_t fit = std::min<size_t>(capacity, owned.size());
    std::transform(owned.begin(), owned.begin() + static_cast<ptrdiff_t>(fit), ranges, to_range);
    return 0;
  });
}

int32_t laconic_driver_turns(laconic_driver* driver, laconic_turns* out) {
  return alone(driver, [&](laconic::session::Driver& own) -> int32_t {
    laconic_turns theirs{};
    if (const int32_t bad = laconic::capi::check_struct(out, "turns"); bad != 0) return bad;
    std::vector<laconic_owned_range>& ranges = driver->ranges;
    ranges.clear();
    auto turns = own.turns().begin();
    if (!turns) return fail(std::move(turns).error());
    std::ranges::transform(turns->ranges, std::back_inserter(ranges), to_range);
    theirs.skips = turns->skips ? 1 : 0;
    theirs.ranges = ranges.data();
    theirs.count = ranges.size();
    theirs.sum_of_squares = turns->sum_of_squares;
    laconic::capi::write_struct(theirs, out);
    return 0;
  });
}

int32_t laconic_driver_pull(laconic_driver* driver, const laconic_failure* failure,
                            uint32_t* skipped) {
  return alone(driver, [&](laconic::session::Driver& own) -> int32_t {
    if (skipped == nullptr) return null_argument("skipped");
    *skipped = 0;
    const auto trouble = trouble_of(failure);
    auto pulled = own.turns().pull(trouble ? &*trouble : nullptr);
    if (!pulled) return fail(std::move(pulled).error());
    *skipped = *pulled ? 0 : 1;
    return 0;
  });
}

int32_t laconic_driver_exchanges(const laconic_driver* driver, const laconic_bucket* buckets,
                                 uint32_t count, uint32_t flags, uint32_t* exchange_of) {
  return guarded([&]() -> int32_t {
    if (driver == nullptr) return null_argument("driver");
    if (count != 0 && (buckets == nullptr || exchange_of == nullptr))
      return null_argument("buckets and exchange_of");
    if (const int32_t bad = check_flags(flags); bad != 0) return bad;
    std::vector<laconic::session::JoiningPart> parts;
    const auto& model = driver->session->model();
    size_t entries = 0;
    for (uint32_t i = 0; i < count; ++i) {
      laconic_bucket b;
      if (const int32_t bad = read_layout(buckets + i, &b); bad != 0) return bad;
      for (uint32_t k = 0; k < b.count; ++k) {
        if (b.parameters[k] >= model.parameters().size())
          return fail(Errc::invalid_argument,
                      "a bucket names a parameter that the model does not have");
      }
      parts.push_back({to_layout(b), static_cast<laconic::DType>(b.dtype), 0});
      entries += b.count;
    }
    laconic::session::number_exchanges(driver->driver.joining(), parts,
                                       (flags & LACONIC_SUBMIT_APART) == 0, {exchange_of, entries});
    return 0;
  });
}

}  // extern "C"
