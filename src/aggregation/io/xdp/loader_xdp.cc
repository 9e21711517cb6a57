// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstring>
#include <span>
#include <utility>

#include "aggregation/io/xdp/xdp.h"
#include "base/fd.h"

// The program as clang compiled it.
extern "C" const unsigned char laconic_bpf_object[];
extern "C" const unsigned long laconic_bpf_object_size;

namespace laconic::aggregation {
namespace {

constexpr uint64_t kLeastSlots = 64, kMostSlots = uint64_t{1} << 20U;
constexpr std::size_t kLogBytes = std::size_t{1} << 20U;
constexpr std::size_t kLogShown = 1500;

int say_nothing(libbpf_print_level, const char*, va_list) { return 0; }

std::string error_text(int error) {
  std::array<char, 128> text{};
  libbpf_strerror(error, text.data(), text.size());
  return text.data();
}

/// The verifier's last line before its statistics is the reason.
std::string reason_in(const std::string& log) {
  std::string text(log.c_str());
  text.erase(std::min(text.find("\nprocessed "), text.size()));
  const std::size_t line = text.rfind('\n');
  return line == std::string::npos ? "" : " (" + text.substr(line + 1) + ")";
}

std::string end_of(const std::string& log) {
  std::string text(log.c_str());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() > kLogShown) text.replace(0, text.size() - kLogShown, "... ");
  return text;
}

/// A map's values, in the memory of this process.
class Shared {
 public:
  ~Shared() {
    if (at_ != nullptr) munmap(at_, size_);
  }
  bool map(int fd, std::size_t size) noexcept {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    size_ = (size + page - 1) / page * page;
    void* at = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    at_ = at == MAP_FAILED ? nullptr : at;
    return at_ != nullptr;
  }
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return static_cast<T*>(at_);
  }

 private:
  void* at_ = nullptr;
  std::size_t size_ = 0;
};

class Loaded final : public Xdp {
 public:
  ~Loaded() override {
    links_.clear();
    if (object_ != nullptr) bpf_object__close(object_);
  }

  Result<void> load(const XdpSettings& settings) {
    std::memcpy(&port_, settings.address.bytes.data() + 2, sizeof(port_));
    std::memcpy(&ip_, settings.address.bytes.data() + 4, sizeof(ip_));
    slot_count_ = static_cast<uint32_t>(
        std::clamp(settings.memory / sizeof(laconic_kernel_slot), kLeastSlots, kMostSlots));
    libbpf_set_print(say_nothing);
    object_ = bpf_object__open_mem(laconic_bpf_object, laconic_bpf_object_size, nullptr);
    if (object_ == nullptr) return Error{Errc::internal, "libbpf rejects the embedded program", {}};
    bpf_map* slots = bpf_object__find_map_by_name(object_, "laconic_slots");
    bpf_map__set_max_entries(slots, slot_count_);
    std::string log(kLogBytes, '\0');
    bpf_program* program = nullptr;
    bpf_object__for_each_program(program, object_) {
      bpf_program__set_log_buf(program, log.data(), log.size());
    }
    if (const int status = bpf_object__load(object_); status != 0) {
      std::string why = "the kernel rejects the XDP program: ";
      why += error_text(status);
      why += reason_in(log);
      if (log[0] != '\0') why += '\n';
      why += end_of(log);
      return Error{Errc::unsupported, std::move(why),
                   status == -EPERM ? "this needs root in the initial user namespace" : ""};
    }
    const auto fd_of = [&](const char* name) {
      return bpf_map__fd(bpf_object__find_map_by_name(object_, name));
    };
    ids_ = fd_of("laconic_ids");
    ports_ = fd_of("laconic_ports");
    program_ = bpf_program__fd(bpf_object__find_program_by_name(object_, "laconic_aggregate"));
    address_ = bpf_program__fd(bpf_object__find_program_by_name(object_, "laconic_address"));
    if (!jobs_.map(fd_of("laconic_jobs"), LACONIC_KERNEL_JOBS * sizeof(laconic_kernel_job)) ||
        !slots_.map(fd_of("laconic_slots"), slot_count_ * sizeof(laconic_kernel_slot))) {
      return Error{Errc::out_of_memory, "cannot map the program's slots", {}};
    }
    return {};
  }

  Result<void> attach(const std::string& interface) {
    const unsigned ifindex = if_nametoindex(interface.c_str());
    if (ifindex == 0) {
      return Error{Errc::invalid_argument, "unknown interface '" + interface + "'", {}};
    }
    if (auto added = add_port(ifindex); !added) return added;
    bpf_link_create_opts options{};
    options.sz = sizeof(options);
    options.flags = XDP_FLAGS_DRV_MODE;
    const int link = bpf_link_create(program_, static_cast<int>(ifindex), BPF_XDP, &options);
    if (link < 0) {
      return Error{
          Errc::unsupported, "cannot attach the program to " + interface + ": " + error_text(link),
          "native XDP needs a driver that supports it, frames that fit a page (MTU 3,400), "
          "and on veth at least the number of receive queues that its peer has for sending"};
    }
    links_.emplace_back(link);
    return {};
  }

  Result<void> add_port(uint32_t ifindex) override {
    bpf_devmap_val port{};
    port.ifindex = ifindex;
    port.bpf_prog.fd = address_;
    if (const int status = bpf_map_update_elem(ports_, &ifindex, &port, BPF_ANY); status != 0) {
      return Error{Errc::unsupported, "the kernel rejects the port: " + error_text(status), {}};
    }
    return {};
  }

  [[nodiscard]] int program() const noexcept override { return program_; }

  SharedSlots take(const protocol::JobSettings& settings, uint32_t id, uint64_t epoch,
                   const protocol::SipKey& key) override {
    const bool fits = settings.needed == settings.world && !settings.full_tags &&
                      settings.slot_bytes() <= LACONIC_KERNEL_SUM && epoch != 0;
    const auto jobs = std::span(jobs_.as<laconic_kernel_job>(), LACONIC_KERNEL_JOBS);
    const auto free = std::find_if(jobs.begin(), jobs.end(),
                                   [](const laconic_kernel_job& job) { return job.epoch == 0; });
    uint32_t first = 0;
    if (!fits || free == jobs.end() || !find_room(settings.ring, &first)) return {};
    laconic_kernel_job& job = *free;
    const auto index = static_cast<uint32_t>(free - jobs.begin());
    if (bpf_map_update_elem(ids_, &id, &index, BPF_NOEXIST) != 0) return {};
    laconic_kernel_slot* slots = slots_.as<laconic_kernel_slot>() + first;
    for (uint32_t i = 0; i < settings.ring; ++i)
      std::memset(&slots[i].slot, 0, sizeof(laconic_slot));
    job.open = 0;
    job.key = key;
    job.id = id;
    job.first_slot = first;
    job.slots = settings.ring;
    job.lanes = settings.lanes;
    job.ip = ip_;
    job.port = port_;
    job.world = settings.world;
    job.code_bits = settings.code_bits;
    job.lane_bits = settings.lane_bits;
    job.placed = 0;
    job.counts = {};
    job.ring = {};
    std::fill(std::begin(job.members), std::end(job.members), laconic_kernel_member{});
    fill_pairs(settings, job.pairs);
    std::atomic_ref(job.epoch).store(epoch);
    return {&job, slots};
  }

  // A program that is under way finds the epoch gone as soon as it has a slot's lock.
  void give_back(const SharedSlots& shared) noexcept override {
    std::atomic_ref(shared.job->open).store(0);
    bpf_map_delete_elem(ids_, &shared.job->id);
    const uint32_t ring = shared.job->slots;
    std::atomic_ref(shared.job->epoch).store(0);
    wait_for(shared.job->placing);
    for (uint32_t i = 0; i < ring; ++i) wait_for(shared.slots[i].lock);
  }

  bool place(const SharedSlots& shared, uint32_t worker, const Address& at) noexcept override {
    laconic_kernel_member& member = shared.job->members[worker];
    if (at.bytes[0] != 4) return false;
    std::memcpy(&member.port, at.bytes.data() + 2, sizeof(member.port));
    std::memcpy(&member.ip, at.bytes.data() + 4, sizeof(member.ip));
    return true;
  }

 private:
  static void wait_for(uint64_t& word) noexcept {
    std::atomic_ref lock(word);
    for (uint64_t free = 0; !lock.compare_exchange_weak(free, 1); free = 0) {
    }
    lock.store(0);
  }

  // First fit: jobs are few and last long.
  bool find_room(uint32_t slots, uint32_t* first) const noexcept {
    const auto jobs = std::span(jobs_.as<laconic_kernel_job>(), LACONIC_KERNEL_JOBS);
    *first = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (const laconic_kernel_job& job : jobs) {
        const bool overlaps = job.epoch != 0 && *first < job.first_slot + job.slots &&
                              job.first_slot < *first + slots;
        if (!overlaps) continue;
        *first = job.first_slot + job.slots;
        moved = true;
      }
    }
    return *first + slots <= slot_count_;
  }

  static void fill_pairs(const protocol::JobSettings& s, laconic_u32 (&pairs)[256]) noexcept {
    std::fill(std::begin(pairs), std::end(pairs), 0U);
    if (s.table_size == 0) return;
    for (uint32_t a = 0; a < s.table_size; ++a) {
      for (uint32_t b = 0; b < s.table_size; ++b) {
        pairs[a << s.code_bits | b] = s.table[a] | uint32_t{s.table[b]} << s.lane_bits;
      }
    }
  }

  bpf_object* object_ = nullptr;
  int ids_ = -1, ports_ = -1, program_ = -1, address_ = -1;
  uint32_t slot_count_ = 0;
  uint32_t ip_ = 0;  // as on the wire
  uint16_t port_ = 0;
  Shared jobs_, slots_;
  std::vector<Fd> links_;
};

}  // namespace

Result<std::unique_ptr<Xdp>> Xdp::open(const XdpSettings& settings) {
  if (settings.address.bytes[0] != 4) {
    return Error{Errc::invalid_argument, "--io xdp serves an IPv4 address of this machine",
                 "--bind ADDR:PORT"};
  }
  auto loaded = std::make_unique<Loaded>();
  if (auto done = loaded->load(settings); !done) return std::move(done).error();
  for (const std::string& interface : settings.interfaces) {
    if (auto done = loaded->attach(interface); !done) return std::move(done).error();
  }
  return std::unique_ptr<Xdp>(std::move(loaded));
}

Result<void> Xdp::check() {
  XdpSettings settings;
  settings.address.bytes[0] = 4;
  auto opened = open(settings);
  if (!opened) return std::move(opened).error();
  return {};
}

}  // namespace laconic::aggregation
