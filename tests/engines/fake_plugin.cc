// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A plug-in whose ranks are threads: LoopbackHub behind the C boundary. Built once correctly, and
// once for each value of FAULT.
#include <laconic/loopback.h>

#include <map>
#include <mutex>
#include <utility>

#include "engines/plugin/exports/exported.h"

namespace {

using namespace laconic;

/// One rank of a group; the group lives as long as the last of them.
class Member final : public Engine {
 public:
  Member(std::shared_ptr<LoopbackHub> hub, uint32_t rank)
      : hub_(std::move(hub)), engine_(hub_->engine(rank)) {}
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_.rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_.world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return engine_.caps(); }
  Result<void> run(std::span<const Step> batch) override { return engine_.run(batch); }
  Result<Ticket> start(std::span<const Step> batch) override { return engine_.start(batch); }
  Result<void> wait(Ticket ticket, Deadline deadline) override {
    return engine_.wait(ticket, deadline);
  }

 private:
  std::shared_ptr<LoopbackHub> hub_;
  Engine& engine_;
};

/// `rendezvous` names the group.
struct Fake {
  [[maybe_unused]] static constexpr const char* kEngine = "fake";
  static std::string library() { return "Loopback 1.0"; }
  static Result<std::unique_ptr<Engine>> open(const laconic_engine_options& options) {
    if (options.rendezvous == nullptr || options.world == 0 || options.rank >= options.world)
      return Error{Errc::invalid_argument, "fake: rank, world and rendezvous are needed", {}};
    static std::mutex mutex;
    static std::map<std::string, std::weak_ptr<LoopbackHub>> groups;
    const std::scoped_lock lock(mutex);
    auto& group = groups[options.rendezvous];
    auto hub = group.lock();
    if (!hub) {
      hub = std::make_shared<LoopbackHub>(options.world, plugin::timeout_of(options),
                                          EngineCaps{kAllSums, true});
      group = hub;
    }
    return std::unique_ptr<Engine>(std::make_unique<Member>(std::move(hub), options.rank));
  }
};

}  // namespace

#if !defined(FAULT)
LACONIC_PLUGIN(Fake)
#elif FAULT == 1  // of another version
extern "C" const laconic_plugin* laconic_plugin_v1(void) {
  static laconic_plugin other = *plugin::table<Fake>();
  other.version = LACONIC_PLUGIN_VERSION + 1;
  return &other;
}
#elif FAULT == 2  // a function is missing
extern "C" const laconic_plugin* laconic_plugin_v1(void) {
  static laconic_plugin other = *plugin::table<Fake>();
  other.wait = nullptr;
  return &other;
}
#elif FAULT == 3  // no table
extern "C" const laconic_plugin* laconic_plugin_v1(void) { return nullptr; }
#else             // no entry
[[maybe_unused]] static const auto kUnused = &plugin::table<Fake>;
#endif
