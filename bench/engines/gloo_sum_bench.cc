// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// `none` by native_sum over GlooEngine next to gloo::allreduce by its default algorithm. Prints
// JSON.
//
//   gloo_sum_bench RANKS [ITERATIONS MIB...]
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "laconic/engine/gloo.h"
#include "sum_bench.h"

namespace {

namespace fs = std::filesystem;

int rank_main(uint32_t rank, uint32_t world, const fs::path& folder, std::span<char*> arguments) {
  auto engine = laconic::GlooEngine::create(
      {.rank = rank, .world = world, .rendezvous = "file:" + (folder / "laconic").string()});
  if (!engine) {
    std::fprintf(stderr, "rank %u: %s\n", rank, engine.error().message.c_str());
    return 1;
  }
  gloo::transport::tcp::attr attributes;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store((folder / "gloo").string());
  auto context =
      std::make_shared<gloo::rendezvous::Context>(static_cast<int>(rank), static_cast<int>(world));
  context->connectFullMesh(store, device);
  laconic::bench::SumBench bench;
  bench.engine = "gloo";
  bench.library = laconic::GlooEngine::library();
  bench.ranks = engine->get();
  bench.own = [&](std::span<float> x) {
    gloo::AllreduceOptions options(context);
    options.setOutput(x.data(), x.size());
    options.setReduceFunction([](void* total, const void* a, const void* b, size_t n) {
      gloo::sum<float>(total, a, b, n);
    });
    gloo::allreduce(options);
  };
  laconic::bench::read_sizes(bench, arguments);
  return laconic::bench::run(bench);
}

}  // namespace

int main(int argc, char** argv) {
  const auto world = static_cast<uint32_t>(argc > 1 ? std::stoul(argv[1]) : 2);
  std::string pattern = (fs::temp_directory_path() / "gloo_sum_bench.XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) return 1;
  const fs::path folder = pattern;
  fs::create_directory(folder / "laconic");
  fs::create_directory(folder / "gloo");
  for (uint32_t rank = 0; rank < world; ++rank) {
    if (::fork() == 0) {
      const int from = std::min(argc, 2);
      return rank_main(rank, world, folder, {argv + from, static_cast<size_t>(argc - from)});
    }
  }
  int bad = 0, status = 0;
  while (::wait(&status) > 0) bad |= status;
  fs::remove_all(folder);
  return bad == 0 ? 0 : 1;
}
