// Memory: the process's own. A device would keep its addresses here and copy through its runtime.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "example.h"

// In front of each piece: its size. As wide as an address must be aligned.
enum { kAlignment = 256 };

FathomStatus example_allocate(FathomBackend* b, int64_t bytes, void** data, FathomError* error) {
  const int64_t most = INT64_C(1) << 47;  // addresses of a process
  char* piece = NULL;
  if (bytes <= most) {
    const int64_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
    piece = aligned_alloc(kAlignment, (size_t)padded);
  }
  if (piece == NULL) {
    return fail(error, FATHOM_OUT_OF_MEMORY, "no memory of %lld bytes", (long long)bytes);
  }
  memcpy(piece, &bytes, sizeof(bytes));
  b->memory_bytes += bytes;
  *data = piece + kAlignment;
  return FATHOM_OK;
}

void example_free(FathomBackend* b, void* data) {
  char* piece = (char*)data - kAlignment;
  int64_t bytes;
  memcpy(&bytes, piece, sizeof(bytes));
  b->memory_bytes -= bytes;
  free(piece);
}

FathomStatus example_copy(FathomBackend* b, void* to, const void* from, int64_t bytes,
                          FathomError* error) {
  (void)b;
  (void)error;
  memcpy(to, from, (size_t)bytes);
  return FATHOM_OK;
}

FathomStatus example_memory_state(FathomBackend* b, FathomMemoryState* state, FathomError* error) {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) {
    return fail(error, FATHOM_UNAVAILABLE, "the system does not say how much memory it has");
  }
  strcpy(state->name, "example memory");
  state->total_bytes = pages * page_bytes;
  state->free_bytes = state->total_bytes - b->memory_bytes;
  if (state->free_bytes < 0) state->free_bytes = 0;
  return FATHOM_OK;
}
