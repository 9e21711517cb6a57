// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// --emulate: no namespaces. The hosts share 127.0.0.1; a sender learns the rate and keeps to it by
// itself.
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "link.h"
#include "process.h"

namespace laconic::lab {
namespace {

class Loopback final : public Link {
 public:
  explicit Loopback(std::string folder) : folder_(std::move(folder)) {}
  ~Loopback() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string_view shaped_by() const override { return "emulated"; }

  /// The file is replaced in one step, so that a reader never sees half a number.
  Result<void> shape(const Shaping& shaping) override {
    rate_ = shaping.rate;
    const std::string fresh = rate_file() + ".new";
    if (const auto written = write_file(fresh, std::to_string(rate_) + "\n"); !written)
      return written;
    if (std::rename(fresh.c_str(), rate_file().c_str()) != 0)
      return system_error("renaming " + fresh);
    return {};
  }

  Result<std::vector<PortCounters>> counters() override { return std::vector<PortCounters>{}; }
  std::string address(int) const override { return "127.0.0.1"; }

  Variables environment(int) const override {
    return {{"LACONIC_EMULATE_RATE", rate_ == kUnshaped ? "" : std::to_string(rate_)},
            {"LACONIC_EMULATE_RATE_FILE", rate_file()},
            {"GLOO_SOCKET_IFNAME", "lo"}};
  }

  std::string folder(int host) const override { return folder_ + "/host" + std::to_string(host); }
  std::string folder_inside(int host) const override { return folder(host); }
  std::vector<int> namespaces(int) const override { return {}; }

 private:
  [[nodiscard]] std::string rate_file() const { return folder_ + "/rate"; }

  std::string folder_;
  BitRate rate_ = kUnshaped;
};

}  // namespace

// Only the name: any process that may have to remove the folder must know it first.
std::string unused_folder() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number)
    number = static_cast<uint64_t>(getpid());
  const char* base = std::getenv("TMPDIR");
  return std::string(base != nullptr ? base : "/tmp") + "/laconic-lab-" + std::to_string(number);
}

Result<std::unique_ptr<Link>> make_loopback_link(const Options& options,
                                                 const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0) return system_error("making the folder " + folder);
  auto link = std::make_unique<Loopback>(folder);
  std::error_code failed;
  for (int host = 0; host < options.hosts && !failed; ++host)
    std::filesystem::create_directory(link->folder(host), failed);
  if (failed)
    return Error{Errc::engine_failed, "making a folder in " + folder + ": " + failed.message(), {}};
  return std::unique_ptr<Link>(std::move(link));
}

}  // namespace laconic::lab
