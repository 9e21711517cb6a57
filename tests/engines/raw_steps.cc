// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "engines/table.h"
#include "support/lanes.h"
#include "support/letters.h"

namespace laconic::test {
namespace {

void all_to_all(Table& table, uint32_t turn) {
  table.begin("all_to_all " + std::to_string(turn));
  Ragged send, recv, expected;
  for (uint32_t r = 0; r < table.world(); ++r) {
    send.add(letter(table.me(), r, turn));
    recv.add(letter(r, table.me(), turn).size());
    expected.add(letter(r, table.me(), turn));
  }
  const Step step{.kind = StepKind::all_to_all,
                  .tag = 8 + turn,
                  .send = send.memory.data(),
                  .recv = recv.memory.data(),
                  .send_counts = send.counts,
                  .send_offsets = send.offsets,
                  .recv_counts = recv.counts,
                  .recv_offsets = recv.offsets};
  if (table.run({&step, 1})) table.check(differs(expected.memory, recv.memory, "recv"));
}

void all_gather(Table& table, uint32_t turn) {
  table.begin("all_gather " + std::to_string(turn));
  Memory own = letter(table.me(), 0, turn);
  Ragged recv, expected;
  for (uint32_t r = 0; r < table.world(); ++r) {
    recv.add(letter(r, 0, turn).size());
    expected.add(letter(r, 0, turn));
  }
  const std::vector<uint64_t> counts(table.world(), own.size()), zeros(table.world());
  const Step step{.kind = StepKind::all_gather,
                  .tag = 16 + turn,
                  .send = own.data(),
                  .recv = recv.memory.data(),
                  .send_counts = counts,
                  .send_offsets = zeros,
                  .recv_counts = recv.counts,
                  .recv_offsets = recv.offsets};
  if (table.run({&step, 1})) table.check(differs(expected.memory, recv.memory, "recv"));
}

/// A ring: to the next rank, from the one before. `bytes` may be more than an engine sends in one
/// call.
void ring(Table& table, uint64_t bytes) {
  table.begin("ring of messages of " + std::to_string(bytes) + " bytes");
  const uint32_t world = table.world();
  const uint32_t next = (table.me() + 1) % world, before = (table.me() + world - 1) % world;
  const auto content = [&](uint32_t rank) {
    Memory all(bytes);
    for (uint64_t i = 0; i < bytes; ++i) all[i] = static_cast<uint8_t>(i * 7 + (i >> 8) + rank);
    return all;
  };
  const Memory out = content(table.me());
  Memory in(bytes);
  std::vector<Message> messages;
  if (world == 2) {
    messages = {{next, out.data(), bytes, in.data(), bytes}};
  } else if (world > 2) {
    messages = {{next, out.data(), bytes, nullptr, 0}, {before, nullptr, 0, in.data(), bytes}};
  }
  const Step step{.kind = StepKind::messages, .tag = (1U << 28) - 1, .messages = messages};
  if (table.run({&step, 1}) && world > 1) table.check(differs(content(before), in, "recv"));
}

void shorter_than_room(Table& table, StepKind kind) {
  if (!table.caps().short_sends) return;
  table.begin(kind == StepKind::messages ? "short messages" : "short all_to_all");
  constexpr uint64_t kRoom = 64;
  const uint32_t world = table.world(), me = table.me();
  const auto length = [](uint32_t from, uint32_t to) { return 1 + from * 3 + to; };
  Memory out(world * kRoom), in(world * kRoom, 0xEE), expected(world * kRoom, 0xEE);
  std::vector<Message> messages;
  std::vector<uint64_t> counts, rooms(world, kRoom), offsets;
  for (uint32_t r = 0; r < world; ++r) {
    offsets.push_back(r * kRoom);
    counts.push_back(r == me ? kRoom : length(me, r));
    std::fill_n(out.begin() + static_cast<ptrdiff_t>(offsets[r]), kRoom,
                static_cast<uint8_t>(me + 1));
    const bool received = r != me || kind == StepKind::all_to_all;
    std::fill_n(expected.begin() + static_cast<ptrdiff_t>(offsets[r]),
                !received ? 0
                : r == me ? kRoom
                          : length(r, me),
                static_cast<uint8_t>(r + 1));
    if (r != me)
      messages.push_back({r, out.data() + offsets[r], counts[r], in.data() + offsets[r], kRoom});
  }
  Step step{.kind = kind, .short_sends = true, .tag = 77};
  if (kind == StepKind::messages) {
    step.messages = messages;
  } else {
    step.send = out.data();
    step.recv = in.data();
    step.send_counts = counts;
    step.send_offsets = step.recv_offsets = offsets;
    step.recv_counts = rooms;
  }
  if (table.run({&step, 1})) table.check(differs(expected, in, "recv"));
}

void sum(Table& table, DType type, uint64_t count) {
  if (!table.caps().can_sum(type)) return;
  table.begin("sum of " + std::to_string(count) + " lanes of " + std::string(dtype_name(type)));
  const uint64_t size = dtype_size(type);
  Memory lanes(count * size);
  uint8_t* at = lanes.data();
  std::vector<float> expected(count), found(count);
  for (uint64_t i = 0; i < count; ++i) {
    store_lane(type, at + i * size, lane(table.me(), i));
    expected[i] = sum_of_lanes(type, table.world(), i);
  }
  const Step step{.dtype = type, .tag = 5, .count = count, .send = at, .recv = at};
  if (!table.run({&step, 1})) return;
  for (uint64_t i = 0; i < count; ++i) found[i] = load_lane(type, at + i * size);
  const double bound = table.options().rank_order_sums ? 0 : sum_bound(type, table.world());
  table.check(differs(expected, found, bound, "sum"));
}

/// Sums of integers wrap, on every engine, in every order.
void sum_of_integers(Table& table, uint64_t count) {
  if (!table.caps().can_sum(DType::i32)) return;
  table.begin("sum of " + std::to_string(count) + " lanes of i32");
  const auto integer = [](uint32_t rank, uint64_t i) {
    return static_cast<uint32_t>(i * 2654435761U + rank * 0x70000001U);
  };
  std::vector<uint32_t> lanes(count);
  for (uint64_t i = 0; i < count; ++i) lanes[i] = integer(table.me(), i);
  auto* at = reinterpret_cast<uint8_t*>(lanes.data());
  const Step step{.dtype = DType::i32, .tag = 6, .count = count, .send = at, .recv = at};
  if (!table.run({&step, 1})) return;
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t expected = 0;
    for (uint32_t r = 0; r < table.world(); ++r) expected += integer(r, i);
    if (lanes[i] != expected)
      return table.check("lane " + std::to_string(i) + " of i32 is " + std::to_string(lanes[i]) +
                         ", not " + std::to_string(expected));
  }
  table.check({});
}

/// The largest number of batches and steps in flight, waited for from the last to the first.
void tickets(Table& table) {
  table.begin("tickets");
  std::array<std::array<float, kMaxBatch>, kMaxTickets> x{};
  std::array<std::array<Step, kMaxBatch>, kMaxTickets> batches;
  std::vector<Ticket> started;
  for (uint32_t turn = 0; turn < kMaxTickets && !table.dead(); ++turn) {
    for (uint32_t i = 0; i < kMaxBatch; ++i) {
      x[turn][i] = static_cast<float>(turn * kMaxBatch + i);
      auto* at = reinterpret_cast<uint8_t*>(&x[turn][i]);
      batches[turn][i] = {
          .dtype = DType::f32, .tag = turn * kMaxBatch + i, .count = 1, .send = at, .recv = at};
    }
    if (const auto ticket = table.start(batches[turn])) started.push_back(*ticket);
  }
  for (; !started.empty() && !table.dead(); started.pop_back()) table.wait(started.back());
  for (uint32_t i = 0; i < kMaxTickets * kMaxBatch && !table.dead(); ++i) {
    const auto expected = static_cast<float>(i * table.world());
    const float found = x[i / kMaxBatch][i % kMaxBatch];
    if (found != expected) table.check("batch " + std::to_string(i / kMaxBatch) + " is wrong");
  }
}

/// The first of more batches than may be under way at a time is waited for last.
void late_ticket(Table& table) {
  table.begin("a late ticket");
  std::array<float, 2 * kMaxTickets> x{};
  std::array<Step, 2 * kMaxTickets> steps;
  Ticket first;
  for (uint32_t i = 0; i < x.size() && !table.dead(); ++i) {
    x[i] = static_cast<float>(i + 1);
    auto* at = reinterpret_cast<uint8_t*>(&x[i]);
    steps[i] = {.dtype = DType::f32, .tag = i, .count = 1, .send = at, .recv = at};
    const auto ticket = table.start({&steps[i], 1});
    if (!ticket) return;
    if (i == 0) first = *ticket;
    if (i != 0) table.wait(*ticket);
  }
  if (!table.dead()) table.wait(first);
  for (uint32_t i = 0; i < x.size() && !table.dead(); ++i) {
    if (x[i] != static_cast<float>((i + 1) * table.world()))
      table.check("batch " + std::to_string(i) + " is wrong");
  }
}

/// Messages and sums of one batch, followed by those of the next.
void mixed_batches(Table& table) {
  table.begin("mixed batches");
  constexpr uint32_t kTurns = 3;
  struct Turn {
    Memory own, all, expected;
    std::vector<uint64_t> counts, zeros, offsets;
    float sum = 1;
    std::array<Step, 3> steps;
  };
  std::vector<Turn> turns(kTurns);
  std::vector<Ticket> started;
  const uint32_t world = table.world();
  for (uint32_t t = 0; t < kTurns && !table.dead(); ++t) {
    Turn& turn = turns[t];
    const uint64_t bytes = t == 1 ? 200'000 : 10;  // more than an engine sends unasked
    turn.own.assign(bytes, static_cast<uint8_t>(table.me() * 16 + t));
    turn.all.resize(bytes * world);
    turn.counts.assign(world, bytes);
    turn.zeros.assign(world, 0);
    for (uint32_t r = 0; r < world; ++r) {
      turn.offsets.push_back(r * bytes);
      turn.expected.insert(turn.expected.end(), bytes, static_cast<uint8_t>(r * 16 + t));
    }
    auto* at = reinterpret_cast<uint8_t*>(&turn.sum);
    turn.steps = {Step{.kind = StepKind::all_gather,
                       .tag = 100 + 3 * t,
                       .send = turn.own.data(),
                       .recv = turn.all.data(),
                       .send_counts = turn.counts,
                       .send_offsets = turn.zeros,
                       .recv_counts = turn.counts,
                       .recv_offsets = turn.offsets},
                  Step{.dtype = DType::f32, .tag = 101 + 3 * t, .count = 1, .send = at, .recv = at},
                  Step{.kind = StepKind::messages, .tag = 102 + 3 * t}};
    if (const auto ticket = table.start(turn.steps)) started.push_back(*ticket);
  }
  for (const Ticket ticket : started) {
    if (!table.dead()) table.wait(ticket);
  }
  for (uint32_t t = 0; t < kTurns && !table.dead(); ++t) {
    table.check(differs(turns[t].expected, turns[t].all, "gathered"));
    if (turns[t].sum != static_cast<float>(world)) table.check("a sum is wrong");
  }
}

}  // namespace

void raw_steps(Table& table) {
  const uint64_t longest = table.options().longest;
  for (const uint32_t turn : {0U, 1U, 2U}) {
    if (!table.dead()) all_to_all(table, turn);
    if (!table.dead()) all_gather(table, turn);
  }
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{5000}, uint64_t{3'000'001}}) {
    if (!table.dead() && bytes <= longest) ring(table, bytes);
  }
  for (const StepKind kind : {StepKind::messages, StepKind::all_to_all}) {
    if (!table.dead()) shorter_than_room(table, kind);
  }
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const uint64_t count : {0U, 1U, 2U, 7U, 1001U, 70'001U}) {
      if (!table.dead() && count <= longest) sum(table, type, count);
    }
  }
  for (const uint64_t count : {0U, 1U, 7U, 70'001U, 3'000'001U}) {
    if (!table.dead() && count <= longest) sum_of_integers(table, count);
  }
  if (!table.dead()) tickets(table);
  if (!table.dead()) late_ticket(table);
  if (!table.dead()) mixed_batches(table);
}

}  // namespace laconic::test
