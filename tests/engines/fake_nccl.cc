// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A recording NCCL and CUDA driver in one library, on host memory: ranks are threads of one
// process, each with its own device. Streams are threads, so that results read too early are not
// there yet. Addresses on a device are marked, and memory is known: a pointer to the wrong side, or
// beyond an allocation, fails the call. With FAKE_NCCL_OLD it has the symbols of NCCL 2.7.
#include <algorithm>
#include <cstring>

#include "fake_world.h"
#include "laconic/dtype.h"

namespace {

using namespace fake;

void add(int type, uint8_t* total, const uint8_t* x, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    if (type == 3) {  // ncclUint32
      uint32_t a = 0, b = 0;
      std::memcpy(&a, total + 4 * i, 4);
      std::memcpy(&b, x + 4 * i, 4);
      a += b;
      std::memcpy(total + 4 * i, &a, 4);
      continue;
    }
    if (type == 7) {
      float a = 0, b = 0;
      std::memcpy(&a, total + 4 * i, 4);
      std::memcpy(&b, x + 4 * i, 4);
      a += b;
      std::memcpy(total + 4 * i, &a, 4);
      continue;
    }
    uint16_t a = 0, b = 0;
    std::memcpy(&a, total + 2 * i, 2);
    std::memcpy(&b, x + 2 * i, 2);
    a = type == 6 ? laconic::float_to_f16(laconic::f16_to_float(a) + laconic::f16_to_float(b))
                  : laconic::float_to_bf16(laconic::bf16_to_float(a) + laconic::bf16_to_float(b));
    std::memcpy(total + 2 * i, &a, 2);
  }
}

uint64_t size_of(int type) { return type == 7 || type == 3 ? 4 : type == 6 || type == 9 ? 2 : 1; }

/// All operations of a group together: sends are posted first, then what arrives is taken.
void execute(Lock& lock, const std::shared_ptr<Communicator>& comm,
             const std::vector<Operation>& operations) {
  World& w = world();
  Hub& hub = *comm->hub;
  const auto wait = [&](const std::function<bool()>& there) {
    w.changed.wait(lock, [&] {
      const auto hanging = w.hanging.find(comm->device);
      if (hanging == w.hanging.end()) return comm->aborted || there();
      return comm->aborted && hanging->second == 0;
    });
    return !comm->aborted;
  };
  std::vector<uint64_t> numbers;
  for (const Operation& o : operations) {
    if (o.kind == Operation::recv) continue;
    Bytes bytes(o.from, o.from + o.count * size_of(o.type));
    if (o.kind == Operation::send) {
      hub.letters[{comm->rank, o.peer}].push_back(std::move(bytes));
    } else {
      numbers.push_back(hub.issued[comm->rank]++);
      hub.collectives[numbers.back()].sent[comm->rank] = std::move(bytes);
    }
  }
  w.changed.notify_all();
  auto number = numbers.begin();
  for (const Operation& o : operations) {
    if (o.kind == Operation::send) continue;
    if (o.kind == Operation::recv) {
      auto& box = hub.letters[{o.peer, comm->rank}];
      if (!wait([&] { return !box.empty(); })) return;
      if (box.front().size() != o.count) {
        comm->async_error = kInvalidArgument;
        w.last_error = "a message of another size";
        return;
      }
      std::copy(box.front().begin(), box.front().end(), o.to);
      box.pop_front();
      continue;
    }
    Hub::Collective& all = hub.collectives[*number];
    if (!wait([&] { return all.sent.size() == static_cast<size_t>(comm->world); })) return;
    const uint64_t bytes = o.count * size_of(o.type);
    for (const auto& [rank, sent] : all.sent) {
      if (sent.size() != bytes) {
        comm->async_error = kInvalidArgument;
        w.last_error = "a collective of another size";
        return;
      }
      if (o.kind == Operation::gather) {
        std::copy(sent.begin(), sent.end(), o.to + static_cast<uint64_t>(rank) * bytes);
      } else if (rank == 0) {
        std::copy(sent.begin(), sent.end(), o.to);
      } else {
        add(o.type, o.to, sent.data(), o.count);
      }
    }
    if (++all.taken == comm->world) hub.collectives.erase(*number);
    ++number;
  }
}

std::shared_ptr<Communicator> known(void* comm) {
  const auto at = world().communicators.find(comm);
  return at == world().communicators.end() ? nullptr : at->second;
}

/// One call of a group, which fails with it.
int issue_one(const char* name, Operation o, void* comm, void* stream,
              const std::string& arguments) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), name, arguments); code != 0) return code;
  const auto c = known(comm);
  const bool real_type = o.type == 1 || o.type == 3 || o.type == 6 || o.type == 7 ||
                         (o.type == 9 && w.version >= 21000);
  if (!c || w.streams.count(stream) == 0 || !real_type || local.group == nullptr)
    return kInvalidArgument;
  const uint64_t bytes = o.count * size_of(o.type);
  if (o.kind != Operation::recv) {
    o.from = memory_at(reinterpret_cast<uint64_t>(o.from), bytes, true);
    if (o.from == nullptr) return kInvalidArgument;
  }
  if (o.kind != Operation::send) {
    const uint64_t room =
        o.kind == Operation::gather ? bytes * static_cast<uint64_t>(c->world) : bytes;
    o.to = memory_at(reinterpret_cast<uint64_t>(o.to), room, true);
    if (o.to == nullptr) return kInvalidArgument;
  }
  local.group->operations.push_back(o);
  local.group->comm = c;
  local.group->stream = static_cast<Stream*>(stream);
  return c->blocking ? 0 : kInProgress;
}

int issue(const char* name, const Operation& o, void* comm, void* stream,
          const std::string& arguments) {
  const int code = issue_one(name, o, comm, stream, arguments);
  if (code != 0 && code != kInProgress && local.group != nullptr) local.group->failure = code;
  return code;
}

int join(void** out, int ranks, uint64_t id, int rank, bool blocking, const char* name) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(
          lock, current(), name,
          std::to_string(rank) + " of " + std::to_string(ranks) + (blocking ? "" : " nonblocking"));
      code != 0)
    return code;
  if (w.hubs.count(id) == 0) return kInvalidArgument;
  auto c = std::make_shared<Communicator>();
  c->hub = w.hubs[id];
  c->rank = rank;
  c->world = ranks;
  c->device = current();
  c->blocking = blocking;
  ++c->hub->arrived;
  w.changed.notify_all();
  if (blocking) {
    const uint64_t epoch = w.epoch;
    w.changed.wait(lock, [&] { return c->hub->arrived >= ranks || w.epoch != epoch; });
    if (c->hub->arrived < ranks) return 2;
  }
  w.communicators[c.get()] = c;
  *out = c.get();
  return blocking ? 0 : kInProgress;
}

int free_communicator(void* comm, const char* name, bool abort) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), name); code != 0) return code;
  const auto c = known(comm);
  if (!c) return kInvalidArgument;
  c->aborted = abort;
  c->launch = nullptr;
  w.communicators.erase(comm);
  w.changed.notify_all();
  return 0;
}

}  // namespace

struct UniqueId {
  char internal[128];
};
struct Config {
  size_t size;
  unsigned int magic, version;
  int blocking;
};

EXPORTED int ncclGetVersion(int* version) {
  Lock lock(world().mutex);
  *version = world().version;
  return begin(lock, -1, "ncclGetVersion", {}, false);
}

EXPORTED int ncclGetUniqueId(UniqueId* id) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, -1, "ncclGetUniqueId"); code != 0) return code;
  const uint64_t number = ++w.next_id;
  w.hubs[number] = std::make_shared<Hub>();
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal + 120, &number, sizeof number);  // its last bytes: all have to travel
  return 0;
}

static uint64_t number_of(const UniqueId& id) {
  uint64_t number = 0;
  std::memcpy(&number, id.internal + 120, sizeof number);
  return number;
}

EXPORTED int ncclCommInitRank(void** comm, int ranks, UniqueId id, int rank) {
  return join(comm, ranks, number_of(id), rank, true, "ncclCommInitRank");
}

EXPORTED int ncclCommDestroy(void* comm) {
  return free_communicator(comm, "ncclCommDestroy", false);
}
EXPORTED int ncclCommAbort(void* comm) { return free_communicator(comm, "ncclCommAbort", true); }

#ifndef FAKE_NCCL_OLD
EXPORTED int ncclCommInitRankConfig(void** comm, int ranks, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->size < 20 || config->version != 21400)
    return kInvalidArgument;
  return join(comm, ranks, number_of(id), rank, config->blocking != 0, "ncclCommInitRankConfig");
}

EXPORTED int ncclCommFinalize(void* comm) {
  Lock lock(world().mutex);
  if (const int code = begin(lock, current(), "ncclCommFinalize"); code != 0) return code;
  const auto c = known(comm);
  if (!c) return kInvalidArgument;
  c->polls = 2;
  return kInProgress;
}

EXPORTED const char* ncclGetLastError(void*) {
  const Lock lock(world().mutex);
  return world().last_error.c_str();
}
#endif

EXPORTED int ncclCommGetAsyncError(void* comm, int* error) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "ncclCommGetAsyncError", {}, false); code != 0)
    return code;
  const auto c = known(comm);
  if (!c) return kInvalidArgument;
  const auto told = w.async_errors.find(c->device);
  *error = told != w.async_errors.end() ? told->second : c->async_error;
  if (*error != 0) return 0;
  if (c->hub->arrived < c->world || c->polls > 0) *error = kInProgress;
  if (c->polls > 0 && --c->polls == 0 && c->launch) std::exchange(c->launch, nullptr)();
  return 0;
}

EXPORTED int ncclGroupStart() {
  Lock lock(world().mutex);
  const int code = begin(lock, current(), "ncclGroupStart");
  if (code == 0 && local.group == nullptr) local.group = new Group;
  if (code == 0) ++local.group->depth, ++world().groups;
  return code;
}

EXPORTED int ncclGroupEnd() {
  World& w = world();
  Lock lock(w.mutex);
  const int code = begin(lock, current(), "ncclGroupEnd");
  if (local.group == nullptr) return 5;
  --w.groups;
  if (--local.group->depth > 0) return code;
  const Group ended = *local.group;
  delete std::exchange(local.group, nullptr);
  if (code != 0 || ended.failure != 0 || !ended.comm) return code != 0 ? code : ended.failure;
  if (ended.comm->aborted) return kInvalidArgument;
  const auto launch = [ended] {
    ended.stream->work.emplace_back(
        [ended](Lock& held) { execute(held, ended.comm, ended.operations); });
    world().changed.notify_all();
  };
  if (ended.comm->blocking) {
    launch();
    return 0;
  }
  ended.comm->launch = launch;
  ended.comm->stream = ended.stream;
  ended.comm->polls = 3;
  return kInProgress;
}

EXPORTED int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, void* comm,
                           void* stream) {
  const char* const names[] = {"?", "uint8",   "?",       "?", "?",
                               "?", "float16", "float32", "?", "bfloat16"};
  if (op != 0) return kInvalidArgument;
  return issue("ncclAllReduce",
               {Operation::sum, static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to), count,
                type, 0},
               comm, stream,
               std::to_string(count) + " " + names[type] + (from == to ? " in place" : ""));
}

EXPORTED int ncclAllGather(const void* from, void* to, size_t count, int type, void* comm,
                           void* stream) {
  return issue("ncclAllGather",
               {Operation::gather, static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to),
                count, type, 0},
               comm, stream, std::to_string(count));
}

EXPORTED int ncclSend(const void* from, size_t count, int type, int peer, void* comm,
                      void* stream) {
  return issue("ncclSend",
               {Operation::send, static_cast<const uint8_t*>(from), nullptr, count, type, peer},
               comm, stream, std::to_string(count) + " to " + std::to_string(peer));
}

EXPORTED int ncclRecv(void* to, size_t count, int type, int peer, void* comm, void* stream) {
  return issue("ncclRecv", {Operation::recv, nullptr, static_cast<uint8_t*>(to), count, type, peer},
               comm, stream, std::to_string(count) + " from " + std::to_string(peer));
}

EXPORTED const char* ncclGetErrorString(int code) {
  return code == 0   ? "no error"
         : code == 1 ? "unhandled cuda error"
         : code == 4 ? "invalid argument"
         : code == 6 ? "remote process exited or there was a network error"
                     : "internal error";
}
