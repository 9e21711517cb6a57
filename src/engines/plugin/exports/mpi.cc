// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// liblaconic_mpi_openmpi.so and liblaconic_mpi_mpich.so: the same source, built with either MPI.
#include "laconic/engine/mpi.h"

#include <cstdlib>

#include "engines/plugin/exports/exported.h"

namespace {

struct Mpi {
  static constexpr const char* kEngine = "mpi";
  static std::string library() { return laconic::MpiEngine::library(); }
  static laconic::Result<std::unique_ptr<laconic::Engine>> open(
      const laconic_engine_options& options) {
    auto engine = std::make_unique<laconic::MpiEngine>(
        nullptr, nullptr,
        laconic::MpiOptions{.timeout = laconic::plugin::timeout_of(options),
                            .environment = std::getenv});
    if (auto ok = engine->status(); !ok) return std::move(ok).error();
    if (options.world != 0 &&
        (options.world != engine->world() || options.rank != engine->rank())) {
      return laconic::Error{
          laconic::Errc::invalid_argument,
          "mpi: the launcher started this process as rank " + std::to_string(engine->rank()) +
              " of " + std::to_string(engine->world()) + ", requested was rank " +
              std::to_string(options.rank) + " of " + std::to_string(options.world),
          {}};
    }
    return std::unique_ptr<laconic::Engine>(std::move(engine));
  }
};

}  // namespace

LACONIC_PLUGIN(Mpi)
