// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// liblaconic_gloo.so.
#include "laconic/engine/gloo.h"

#include "engines/plugin/exports/exported.h"

namespace {

struct Gloo {
  static constexpr const char* kEngine = "gloo";
  static std::string library() { return laconic::GlooEngine::library(); }
  static laconic::Result<std::unique_ptr<laconic::Engine>> open(
      const laconic_engine_options& options) {
    auto engine = laconic::GlooEngine::create({
        .rank = options.rank,
        .world = options.world,
        .rendezvous = options.rendezvous == nullptr ? "" : options.rendezvous,
        .interface_ = options.interface_ == nullptr ? "" : options.interface_,
        .timeout = laconic::plugin::timeout_of(options),
    });
    if (!engine) return std::move(engine).error();
    return std::unique_ptr<laconic::Engine>(*std::move(engine));
  }
};

}  // namespace

LACONIC_PLUGIN(Gloo)
