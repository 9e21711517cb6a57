// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic inspect: what a stand-alone frame says about itself.
#include <memory>

#include "command.h"
#include "files.h"
#include "frame_fields.h"
#include "output.h"

namespace laconic::tools {
namespace {

struct Options {
  std::string file;
  bool json = false;
};

int inspect(const Options& options) {
  const auto bytes = read_file(options.file);
  if (!bytes) return fail(bytes.error(), options.json, kUsage);
  const auto frame = parse_frame(*bytes);
  if (!frame) return fail(frame.error(), options.json, kBadAnswer);
  const Json fields = describe(*frame, bytes->size());
  options.json ? print_json({{"frame", fields}}) : print_fields(fields);
  return kFine;
}

}  // namespace

Run add_inspect(Program& program) {
  const Command command = program.add_command("inspect", "the header of a stand-alone frame");
  const auto options = std::make_shared<Options>();
  command.add_option("file", options->file, "the frame").required();
  command.add_flag("--json", options->json, "machine-readable");
  return [options] { return inspect(*options); };
}

}  // namespace laconic::tools
