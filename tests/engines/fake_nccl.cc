// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A recording NCCL and CUDA driver in one library, on host memory: ranks are threads of one
// process, each with a device of its own. Streams are threads, so that what is asked for too early
// is not there yet. Addresses on a device are marked, and memory is known: a pointer to the wrong
// side, or beyond a piece, fails the call. With FAKE_NCCL_OLD it has the symbols of NCCL 2.7.
#include "fake_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "laconic/dtype.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using laconic::DType;
using Bytes = std::vector<uint8_t>;
using Lock = std::unique_lock<std::mutex>;

constexpr uint64_t kOnDevice = 1ULL << 62U;
constexpr int kInvalidArgument = 4, kInProgress = 7;
constexpr int kInvalidValue = 1, kNoDevice = 100, kInvalidDevice = 101, kNotReady = 600;

struct Hub;
struct Stream;

struct Communicator {
  std::shared_ptr<Hub> hub;
  int rank = 0, world = 0, device = -1;
  bool blocking = true, aborted = false, finalized = false;
  int async_error = 0;
  int polls = 0;                 // until what is in progress has been done
  std::function<void()> launch;  // what is in progress
  Stream* stream = nullptr;      // that it goes to
};

/// Where the ranks of one communicator meet.
struct Hub {
  int arrived = 0;
  std::map<std::pair<int, int>, std::deque<Bytes>> letters;  // from, to
  struct Collective {
    std::map<int, Bytes> sent;
    int taken = 0;
  };
  std::map<uint64_t, Collective> collectives;
  std::map<int, uint64_t> issued;  // by rank
};

struct Operation {
  enum Kind { sum, gather, send, recv } kind;
  const uint8_t* from;
  uint8_t* to;
  uint64_t count;
  int type, peer;
};

struct Piece {
  uint64_t bytes;
  bool on_device;
};

/// For programs that open the library by themselves.
int devices_told() {
  const char* const told = std::getenv("FAKE_NCCL_DEVICES");
  return told != nullptr ? std::atoi(told) : 2;
}

/// Never destroyed: threads that block stay behind.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
#ifdef FAKE_NCCL_OLD
  int version = 2708;
#else
  int version = 22703;
#endif
  int devices = devices_told();
  uint64_t epoch = 0;  // reset() ends what blocks
  std::map<int, std::string> calls;
  std::map<std::pair<int, std::string>, int> failures;
  std::set<std::pair<int, std::string>> blocks;
  std::map<int, int> async_errors;
  std::map<int, bool> hanging;  // by device: even if aborted
  std::string last_error;
  uint64_t next_id = 0;
  std::map<uint64_t, std::shared_ptr<Hub>> hubs;
  std::map<void*, std::shared_ptr<Communicator>> communicators;
  std::set<void*> streams;
  int contexts = 0, groups = 0;
  std::map<uint64_t, Piece> memory;
};
World& world() {
  static World* const w = new World;
  return *w;
}

struct Group {
  int depth = 0;
  int failure = 0;
  std::vector<Operation> operations;
  std::shared_ptr<Communicator> comm;
  Stream* stream = nullptr;
};
/// Of a thread. Trivial, and in memory that is there before the thread: ThreadSanitizer does not
/// see how the loader frees other kinds.
struct Local {
  Group* group;
  int contexts[16];  // their devices
  int depth;         // of these
};
__attribute__((tls_model("initial-exec"))) thread_local Local local;

int current() { return local.depth == 0 ? -1 : local.contexts[local.depth - 1]; }

struct Stream {
  explicit Stream(int d) : device(d), thread([this] { serve(); }) {}
  ~Stream() {
    {
      const Lock lock(world().mutex);
      ending = true;
      world().changed.notify_all();
    }
    thread.join();
  }
  void serve() {
    Lock lock(world().mutex);
    for (;;) {
      world().changed.wait(lock, [&] { return ending || !work.empty(); });
      if (work.empty()) return;
      const auto next = work.front();
      next(lock);
      work.pop_front();
    }
  }
  int device;
  bool ending = false;
  std::deque<std::function<void(Lock&)>> work;  // front: in execution
  std::thread thread;
};

/// Records a call; gives what it was told to, after it has blocked if it was told to.
int begin(Lock& lock, int device, const char* name, const std::string& arguments = {},
          bool recorded = true) {
  World& w = world();
  if (recorded) w.calls[device] += name + (arguments.empty() ? "" : " " + arguments) + "\n";
  if (w.blocks.erase({device, name}) != 0)
    w.changed.wait(lock, [&, epoch = w.epoch] { return w.epoch != epoch; });
  const auto at = w.failures.find({device, name});
  if (at == w.failures.end()) return 0;
  const int code = at->second;
  w.failures.erase(at);
  return code;
}

/// Null unless [address, address + bytes) lies in one piece on that side.
uint8_t* memory_at(uint64_t address, uint64_t bytes, bool on_device) {
  World& w = world();
  auto at = w.memory.upper_bound(address);
  if (at == w.memory.begin()) return nullptr;
  --at;
  if (at->second.on_device != on_device || address + bytes > at->first + at->second.bytes)
    return nullptr;
  return reinterpret_cast<uint8_t*>(address & ~kOnDevice);
}

void add(int type, uint8_t* total, const uint8_t* x, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
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

uint64_t size_of(int type) { return type == 7 ? 4 : type == 6 || type == 9 ? 2 : 1; }

/// All operations of a group at once: what is sent is posted first, then what arrives is taken.
void execute(Lock& lock, const std::shared_ptr<Communicator>& comm,
             const std::vector<Operation>& operations) {
  World& w = world();
  Hub& hub = *comm->hub;
  const auto wait = [&](const std::function<bool()>& there) {
    w.changed.wait(lock, [&] {
      const auto hanging = w.hanging.find(comm->device);
      if (hanging == w.hanging.end()) return comm->aborted || there();
      return comm->aborted && !hanging->second;
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
  const bool real_type =
      o.type == 1 || o.type == 6 || o.type == 7 || (o.type == 9 && w.version >= 21000);
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

int allocate(uint64_t* address, uint64_t bytes, bool on_device, const char* name) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), name, std::to_string(bytes)); code != 0) return code;
  *address = reinterpret_cast<uint64_t>(std::malloc(bytes)) | (on_device ? kOnDevice : 0);
  w.memory[*address] = {bytes, on_device};
  return 0;
}

int deallocate(uint64_t address, bool on_device, const char* name) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), name); code != 0) return code;
  const auto at = w.memory.find(address);
  if (at == w.memory.end() || at->second.on_device != on_device) return kInvalidValue;
  w.memory.erase(at);
  std::free(reinterpret_cast<void*>(address & ~kOnDevice));
  return 0;
}

/// Behind what is on the stream; refused while NCCL is still putting its kernels there.
int copy(uint64_t to, uint64_t from, uint64_t bytes, void* stream, bool to_device,
         const char* name) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), name, std::to_string(bytes)); code != 0) return code;
  uint8_t* const target = memory_at(to, bytes, to_device);
  uint8_t* const source = memory_at(from, bytes, !to_device);
  if (target == nullptr || source == nullptr || w.streams.count(stream) == 0) return kInvalidValue;
  for (const auto& [handle, c] : w.communicators) {
    if (c->launch && c->stream == stream) return kInvalidValue;
  }
  static_cast<Stream*>(stream)->work.emplace_back([=](Lock& held) {
    held.unlock();
    std::memcpy(target, source, bytes);
    held.lock();
  });
  w.changed.notify_all();
  return 0;
}

}  // namespace

// ---- controls ----

namespace {

FakeNccl controls() {
  FakeNccl c{};
  c.reset = [](int version, int devices) {
    World& w = world();
    const Lock lock(w.mutex);
    ++w.epoch;
    w.version = version;
    w.devices = devices;
    w.calls.clear();
    w.failures.clear();
    w.blocks.clear();
    w.async_errors.clear();
    w.hanging.clear();
    w.last_error.clear();
    w.changed.notify_all();
  };
  c.fail = [](int device, const char* call, int code) {
    const Lock lock(world().mutex);
    world().failures[{device, call}] = code;
  };
  c.block = [](int device, const char* call) {
    const Lock lock(world().mutex);
    world().blocks.insert({device, call});
  };
  c.async_error = [](int device, int code) {
    const Lock lock(world().mutex);
    world().async_errors[device] = code;
    world().last_error = "the cable is cut";
  };
  c.hang = [](int device, bool for_good) {
    const Lock lock(world().mutex);
    world().hanging[device] = for_good;
  };
  c.calls = [](int device, char* out, uint64_t room) -> uint64_t {
    const Lock lock(world().mutex);
    const std::string calls = std::exchange(world().calls[device], {});
    std::strncpy(out, calls.c_str(), room - 1);
    out[room - 1] = '\0';
    return calls.size();
  };
  c.alive = []() -> uint64_t {
    World& w = world();
    const Lock lock(w.mutex);
    return w.communicators.size() + w.streams.size() + w.memory.size() +
           static_cast<uint64_t>(w.contexts + w.groups);
  };
  return c;
}

}  // namespace

EXPORTED const FakeNccl* fake_nccl() {
  static const FakeNccl all = controls();
  return &all;
}

// ---- NCCL ----

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

// ---- CUDA ----

EXPORTED int cuInit(unsigned int) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, -1, "cuInit", {}, false); code != 0) return code;
  return w.devices == 0 ? kNoDevice : 0;
}

EXPORTED int cuGetErrorString(int code, const char** text) {
  *text = code == 2     ? "out of memory"
          : code == 100 ? "no CUDA-capable device is detected"
          : code == 101 ? "invalid device ordinal"
                        : nullptr;
  return *text != nullptr ? 0 : kInvalidValue;
}

EXPORTED int cuDeviceGetCount(int* count) {
  Lock lock(world().mutex);
  *count = world().devices;
  return begin(lock, -1, "cuDeviceGetCount", {}, false);
}

EXPORTED int cuDeviceGet(int* device, int ordinal) {
  Lock lock(world().mutex);
  *device = ordinal;
  if (const int code = begin(lock, ordinal, "cuDeviceGet", {}, false); code != 0) return code;
  return ordinal < world().devices ? 0 : kInvalidDevice;
}

EXPORTED int cuDevicePrimaryCtxRetain(void** context, int device) {
  Lock lock(world().mutex);
  if (const int code = begin(lock, device, "cuDevicePrimaryCtxRetain", {}, false); code != 0)
    return code;
  ++world().contexts;
  *context = reinterpret_cast<void*>(static_cast<uint64_t>(device) + 1);
  return 0;
}

EXPORTED int cuDevicePrimaryCtxRelease_v2(int) {
  const Lock lock(world().mutex);
  --world().contexts;
  return 0;
}

EXPORTED int cuCtxPushCurrent_v2(void* context) {
  const int device = static_cast<int>(reinterpret_cast<uint64_t>(context)) - 1;
  Lock lock(world().mutex);
  if (const int code = begin(lock, device, "cuCtxPushCurrent", {}, false); code != 0) return code;
  local.contexts[local.depth++] = device;
  return 0;
}

EXPORTED int cuCtxPopCurrent_v2(void**) {
  if (local.depth == 0) return 201;
  --local.depth;
  return 0;
}

EXPORTED int cuStreamCreate(void** stream, unsigned int flags) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "cuStreamCreate", {}, false); code != 0) return code;
  if (flags != 1 || current() < 0) return kInvalidValue;
  *stream = new Stream(current());
  w.streams.insert(*stream);
  return 0;
}

EXPORTED int cuStreamDestroy_v2(void* stream) {
  {
    const Lock lock(world().mutex);
    if (world().streams.erase(stream) == 0) return kInvalidValue;
  }
  delete static_cast<Stream*>(stream);
  return 0;
}

EXPORTED int cuStreamQuery(void* stream) {
  Lock lock(world().mutex);
  if (const int code = begin(lock, current(), "cuStreamQuery", {}, false); code != 0) return code;
  if (world().streams.count(stream) == 0) return kInvalidValue;
  return static_cast<Stream*>(stream)->work.empty() ? 0 : kNotReady;
}

EXPORTED int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  return allocate(address, bytes, true, "cuMemAlloc");
}
EXPORTED int cuMemFree_v2(uint64_t address) { return deallocate(address, true, "cuMemFree"); }
EXPORTED int cuMemHostAlloc(void** address, size_t bytes, unsigned int) {
  uint64_t at = 0;
  const int code = allocate(&at, bytes, false, "cuMemHostAlloc");
  *address = reinterpret_cast<void*>(at);
  return code;
}
EXPORTED int cuMemFreeHost(void* address) {
  return deallocate(reinterpret_cast<uint64_t>(address), false, "cuMemFreeHost");
}
EXPORTED int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  return copy(to, reinterpret_cast<uint64_t>(from), bytes, stream, true, "cuMemcpyHtoDAsync");
}
EXPORTED int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  return copy(reinterpret_cast<uint64_t>(to), from, bytes, stream, false, "cuMemcpyDtoHAsync");
}
