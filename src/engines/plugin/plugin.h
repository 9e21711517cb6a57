// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Engines in libraries of their own (laconic/plugin.h), opened at run time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "laconic/engine.h"
#include "laconic/plugin.h"

namespace laconic::engines {

/// As laconic_engine_options has it; empty strings are left out.
struct PluginOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  uint32_t rank = 0;
  uint32_t world = 0;
  std::string rendezvous;
  std::string interface;
};

/// The table of a plug-in that this library understands; it stays open until the process ends,
/// because what it stands on may have threads. A path with a slash is that file, a name is searched
/// for as the dynamic loader does.
Result<const laconic_plugin*> load_plugin(const std::string& path);

/// An engine of it. All ranks together.
Result<std::unique_ptr<Engine>> open_plugin(const std::string& path,
                                            const PluginOptions& options = {});

}  // namespace laconic::engines
