// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/plugin/plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "engines/c_step.h"

namespace laconic::engines {
namespace {

constexpr uint64_t kMessageRoom = 1024;

/// Calls a function of the table with room for a message.
template <class Call>
Result<void> told(const Call& call) {
  std::array<char, kMessageRoom> message{};
  const int32_t code = call(message.data(), kMessageRoom);
  if (code == 0) return {};
  message.back() = '\0';
  return Error{static_cast<Errc>(code), message.data(), {}};
}

/// Forwards everything.
class PluginEngine final : public Engine {
 public:
  PluginEngine(const laconic_plugin& table, laconic_engine* engine, const laconic_engine_info& info)
      : table_(table), engine_(engine), info_(info) {}
  /// Batches that have failed may use their memory as long as the process lives.
  ~PluginEngine() override {
    table_.close(engine_);
    if (failed_) keep_for_good();
  }

  [[nodiscard]] uint32_t rank() const noexcept override { return info_.rank; }
  [[nodiscard]] uint32_t world() const noexcept override { return info_.world; }
  [[nodiscard]] EngineCaps caps() const noexcept override {
    return {info_.sums, info_.short_sends != 0};
  }
  Result<void> run(std::span<const Step> batch) override {
    auto ticket = start(batch);
    return ticket ? wait(*ticket, Deadline::max()) : Result<void>(std::move(ticket).error());
  }
  Result<Ticket> start(std::span<const Step> batch) override;
  Result<void> wait(Ticket ticket, Deadline deadline) override;

 private:
  const laconic_plugin& table_;
  laconic_engine* engine_;
  laconic_engine_info info_;
  bool failed_ = false;
};

Result<Ticket> PluginEngine::start(std::span<const Step> batch) {
  if (batch.size() > kMaxBatch) {
    return Error{Errc::invalid_argument,
                 "a batch has at most " + std::to_string(kMaxBatch) + " steps, found " +
                     std::to_string(batch.size()),
                 {}};
  }
  std::array<laconic_step, kMaxBatch> steps;
  std::transform(batch.begin(), batch.end(), steps.begin(), to_c);
  Ticket ticket;
  const auto started = told([&](char* message, uint64_t room) {
    return table_.start(engine_, steps.data(), sizeof(laconic_step),
                        static_cast<uint32_t>(batch.size()), &ticket.number, message, room);
  });
  failed_ = failed_ || !started;
  return started ? Result<Ticket>(ticket) : Result<Ticket>(started.error());
}

Result<void> PluginEngine::wait(Ticket ticket, Deadline deadline) {
  const std::chrono::duration<double> left = deadline - std::chrono::steady_clock::now();
  auto done = told([&](char* message, uint64_t room) {
    return table_.wait(engine_, ticket.number, std::max(left.count(), 0.0), message, room);
  });
  failed_ = failed_ || !done;
  return done;
}

/// A file that was cut off: the dynamic loader maps what is not there, and the process dies of it.
bool is_cut_off(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return false;  // the loader says why
  const auto size = static_cast<uint64_t>(file.tellg());
  ElfW(Ehdr) head{};
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(&head), sizeof head)) return true;
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return false;
  file.seekg(static_cast<std::streamoff>(head.e_phoff));
  for (uint32_t i = 0; i < head.e_phnum; ++i) {
    ElfW(Phdr) segment{};
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) return true;
    if (segment.p_filesz > size || segment.p_offset > size - segment.p_filesz) return true;
  }
  return false;
}

Error cannot_open(const std::string& path, std::string why) {
  return {Errc::engine_failed, path + " is not a plug-in for this version: " + std::move(why),
          "build it from the same release of laconic"};
}

}  // namespace

Result<const laconic_plugin*> load_plugin(const std::string& path) {
  if (path.find('/') != std::string::npos && is_cut_off(path))
    return Error{Errc::engine_failed, path + " is truncated", "install the plug-in again"};
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return Error{Errc::engine_failed, why != nullptr ? why : path + " cannot be opened",
                 "build or install the plug-in, or set another path"};
  }
  using Entry = const laconic_plugin* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, "laconic_plugin_v1"));
  const laconic_plugin* table = entry == nullptr ? nullptr : entry();
  std::string why;
  if (entry == nullptr) {
    why = "it has no laconic_plugin_v1";
  } else if (table == nullptr) {
    why = "it returns no table";
  } else if (table->version != LACONIC_PLUGIN_VERSION) {
    why = "it has version " + std::to_string(table->version) + ", expected " +
          std::to_string(LACONIC_PLUGIN_VERSION);
  } else if (table->struct_size < sizeof(laconic_plugin) || table->engine == nullptr ||
             table->library == nullptr || table->open == nullptr || table->close == nullptr ||
             table->describe == nullptr || table->start == nullptr || table->wait == nullptr) {
    why = "its table is incomplete";
  } else {
    return table;
  }
  ::dlclose(library);
  return cannot_open(path, why);
}

Result<std::unique_ptr<Engine>> open_plugin(const std::string& path, const PluginOptions& options) {
  const auto table = load_plugin(path);
  if (!table) return table.error();
  const laconic_plugin& plugin = **table;
  laconic_engine_options o{};
  o.struct_size = sizeof o;
  o.timeout = std::chrono::duration<double>(options.timeout).count();
  o.rank = options.rank;
  o.world = options.world;
  o.rendezvous = options.rendezvous.empty() ? nullptr : options.rendezvous.c_str();
  o.interface_ = options.interface.empty() ? nullptr : options.interface.c_str();
  laconic_engine* engine = nullptr;
  const auto opened =
      told([&](char* message, uint64_t room) { return plugin.open(&o, &engine, message, room); });
  if (!opened) return opened.error();
  laconic_engine_info info{};
  info.struct_size = sizeof info;
  if (const int32_t code = plugin.describe(engine, &info);
      code != 0 || info.world == 0 || info.rank >= info.world) {
    plugin.close(engine);
    return cannot_open(path, "its engine does not describe itself");
  }
  return std::unique_ptr<Engine>(std::make_unique<PluginEngine>(plugin, engine, info));
}

}  // namespace laconic::engines
