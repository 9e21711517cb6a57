/* Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
 *
 * A C program against the installed package: bytes out, bytes in. Also the proof that laconic.h is
 * C. */
#include <laconic/laconic.h>
#include <laconic/version.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kCount = 1000 };

static void check(int32_t code, const char* what) {
  if (code == 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, laconic_error_name(code), laconic_last_message());
  exit(1);
}

static laconic_tensor vector_of(float* data) {
  laconic_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.dtype = LACONIC_F32;
  tensor.rows = kCount;
  tensor.cols = 1;
  tensor.data = data;
  return tensor;
}

/* Encodes and decodes kCount floats; the frame's size comes back. */
static uint64_t round_trip(const char* spec, float* in, float* out) {
  laconic_codec* codec = NULL;
  check(laconic_codec_create(spec, strlen(spec), 0, &codec), spec);
  laconic_place place;
  memset(&place, 0, sizeof place);
  place.struct_size = sizeof place;
  place.world = 1;
  uint64_t capacity = 0, written = 0;
  check(laconic_codec_max_frame_bytes(codec, kCount, 1, &capacity), "max_frame_bytes");
  void* frame = malloc(capacity);
  const laconic_tensor source = vector_of(in), target = vector_of(out);
  check(laconic_encode(codec, &source, &place, NULL, frame, capacity, &written, NULL), "encode");
  check(laconic_decode(codec, frame, written, 1.0F, 0, &target, NULL), "decode");
  free(frame);
  laconic_codec_destroy(codec);
  return written;
}

int main(void) {
  if (laconic_abi_version() != LACONIC_ABI_VERSION ||
      strcmp(laconic_version(), LACONIC_VERSION_STRING) != 0) {
    fprintf(stderr, "header %s and library %s differ\n", LACONIC_VERSION_STRING, laconic_version());
    return 1;
  }
  float in[kCount], out[kCount];
  for (int i = 0; i < kCount; ++i) in[i] = sinf((float)i);
  const uint64_t bytes = round_trip("none", in, out);
  if (memcmp(in, out, sizeof in) != 0) return fprintf(stderr, "none changed a value\n"), 1;

  laconic_codec* codec = NULL;
  if (laconic_codec_create("nonne", 5, 0, &codec) == 0 || codec != NULL)
    return fprintf(stderr, "nonne parsed\n"), 1;
  printf("C: laconic %s, %d floats in %d bytes; a bad spec: %s\n", laconic_version(), (int)kCount,
         (int)bytes, laconic_last_message());
  return 0;
}
