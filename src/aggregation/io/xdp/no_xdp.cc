// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// In place of loader_xdp.cc, where clang or libbpf was missing.
#include "aggregation/io/xdp/xdp.h"

namespace laconic::aggregation {

Result<void> Xdp::check() {
  return Error{Errc::unsupported, "not in this build: clang 14 and libbpf-dev were not found",
               "install them and build again"};
}

Result<std::unique_ptr<Xdp>> Xdp::open(const XdpSettings&) { return check().error(); }

}  // namespace laconic::aggregation
