/* Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI in one program: encode with error feedback, look at the frame, decode the frames of two
 * ranks into their mean, and handle an error. docs/guide/c-abi.md explains it line by line. */
#include <laconic/laconic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, COLS = 128, COUNT = ROWS * COLS, RANKS = 2, STEPS = 3 };

static int failed(int32_t code, const char* what) {
  if (code == 0) return 0;
  fprintf(stderr, "%s: %s (%d): %s\n  %s\n", what, laconic_error_name(code), (int)code,
          laconic_last_message(), laconic_last_hint());
  return 1;
}

static laconic_tensor matrix(float* data) {
  laconic_tensor t;
  memset(&t, 0, sizeof t);
  t.struct_size = sizeof t;
  t.dtype = LACONIC_F32;
  t.rows = ROWS;
  t.cols = COLS;
  t.data = data;
  return t;
}

static laconic_place place_of(uint32_t rank, uint64_t step) {
  laconic_place p;
  memset(&p, 0, sizeof p);
  p.struct_size = sizeof p;
  p.rank = rank;
  p.world = RANKS;
  p.step = step;
  return p;
}

int main(void) {
  const char* spec = "topk:ratio=0.05";
  laconic_codec* codec = NULL;
  laconic_residual* residuals[RANKS] = {NULL, NULL};
  void* frames[RANKS] = {NULL, NULL};
  uint64_t sizes[RANKS] = {0, 0}, capacity = 0, step;
  uint32_t rank;
  float *gradient = malloc(COUNT * sizeof(float)), *mean = malloc(COUNT * sizeof(float));
  int bad = gradient == NULL || mean == NULL;

  if (laconic_abi_version() != LACONIC_ABI_VERSION) return 1;
  bad = bad || failed(laconic_codec_create(spec, strlen(spec), 1, &codec), "codec");
  bad = bad || failed(laconic_codec_max_frame_bytes(codec, ROWS, COLS, &capacity), "bound");
  for (rank = 0; rank < RANKS && !bad; ++rank) {
    bad = failed(laconic_residual_create(COUNT, &residuals[rank]), "residual");
    frames[rank] = malloc((size_t)capacity);
    bad = bad || frames[rank] == NULL;
  }

  for (step = 0; step < STEPS && !bad; ++step) {
    for (rank = 0; rank < RANKS && !bad; ++rank) {
      laconic_tensor source = matrix(gradient);
      laconic_place place = place_of(rank, step);
      int i;
      for (i = 0; i < COUNT; ++i)
        gradient[i] = (float)((i * 37 + (int)step * 11 + (int)rank * 5) % 101) - 50.0F;
      bad = failed(laconic_encode(codec, &source, &place, residuals[rank], frames[rank], capacity,
                                  &sizes[rank], NULL),
                   "encode");
    }
    if (!bad) {
      laconic_tensor target = matrix(mean);
      const void* both[RANKS];
      for (rank = 0; rank < RANKS; ++rank) both[rank] = frames[rank];
      bad = failed(
          laconic_decode_many(codec, both, sizes, RANKS, 1.0F / RANKS, 0, &target, NULL), "decode");
      printf("step %d: %d bytes from each rank instead of %d\n", (int)step, (int)sizes[0],
             (int)(COUNT * sizeof(float)));
    }
  }

  if (!bad) { /* any bytes give an answer, never a crash */
    laconic_frame_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    bad = failed(laconic_frame_parse(frames[0], sizes[0], &info), "parse");
    if (!bad)
      printf("frame: %.*s, %d x %d, rank %d of %d\n", (int)info.spec_bytes, info.spec,
             (int)info.rows, (int)info.cols, (int)info.rank, (int)info.world);
    ((unsigned char*)frames[0])[sizes[0] - 1] ^= 1;
    if (laconic_frame_parse(frames[0], sizes[0], &info) == 0) bad = 1;
    printf("one flipped bit: %s\n", laconic_last_message());
  }

  for (rank = 0; rank < RANKS; ++rank) {
    laconic_residual_destroy(residuals[rank]);
    free(frames[rank]);
  }
  laconic_codec_destroy(codec);
  free(gradient);
  free(mean);
  return bad;
}
