#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fathom::fuzz::ApiRequest({data, size});
  return 0;
}
