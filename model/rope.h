// Rotary frequencies of the two kinds of layers.
#pragma once

#include <vector>

#include "checkpoint/config.h"

namespace fathom {

// fp32 frequencies f_k, k < rope_dim / 2. Window-only layers: 1 / theta^(2k / rope_dim). Layers
// with a compressor (`compressed`): the same with compress_rope_theta, blended by YaRN. One table
// of each for the whole engine: a 1-ulp difference in f_1 is 0.06 rad at position 10^6. Source:
// official inference code, model.py: precompute_freqs_cis.
std::vector<float> RopeFrequencies(const ModelConfig& config, bool compressed);

}  // namespace fathom
