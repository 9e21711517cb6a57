// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A C++ program over Gloo against the installed package: two ranks, as threads, average 1 and 3.
#include <laconic/engine/gloo.h>
#include <laconic/session.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

bool averages(uint32_t rank, const std::string& rendezvous) {
  auto engine = laconic::GlooEngine::create({.rank = rank, .world = 2, .rendezvous = rendezvous});
  if (!engine) return std::fprintf(stderr, "%s\n", engine.error().message.c_str()), false;
  auto session = laconic::Session::create("3lc", {{"w", 100, 100}}, **engine);
  std::vector<float> gradient(10000, rank == 0 ? 1.0F : 3.0F);
  return session && (*session)->average(0, gradient) && gradient[9999] == 2.0F;
}

}  // namespace

int main() {
  char folder[] = "/tmp/consumer_gloo.XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  const std::string rendezvous = "file:" + std::string(folder);
  bool other = false;
  std::thread second([&] { other = averages(1, rendezvous); });
  const bool fine = averages(0, rendezvous);
  second.join();
  std::printf("C++ over Gloo: the mean %s\n", fine && other ? "is right" : "is wrong");
  return fine && other ? 0 : 1;
}
