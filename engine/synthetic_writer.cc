#include "engine/synthetic_writer.h"

#include <algorithm>
#include <vector>

#include "backend/fills_memory.h"

namespace fathom {

Status SyntheticWriter::Write(std::span<const WeightCopy> copies, const LoadProgress& progress) {
  uint64_t total = 0, done = 0;
  for (const WeightCopy& copy : copies) total += copy.from.size();
  for (const WeightCopy& copy : copies) {
    const auto tensor = checkpoint_.SyntheticAt(copy.from.data());
    // Norms and biases have their bytes.
    FATHOM_RETURN_IF_ERROR(tensor ? Write(*tensor, copy) : copy.memory->CopyIn(copy.to, copy.from));
    done += copy.from.size();
    if (progress) progress(done, total);
  }
  return backend_.Synchronize();
}

Status SyntheticWriter::Write(const SyntheticTensor& tensor, const WeightCopy& copy) {
  FillsMemory* const filler = FillsMemoryOf(backend_);
  if (filler != nullptr && tensor.recipe() != nullptr) {
    return filler->Fill(*tensor.recipe(), copy.to, static_cast<int64_t>(copy.from.size()));
  }
  const uint64_t piece_bytes = (uint64_t{4} << 20) / tensor.unit_bytes() * tensor.unit_bytes();
  std::vector<std::byte> piece(std::min<uint64_t>(piece_bytes, copy.from.size()));
  for (uint64_t begin = 0; begin < copy.from.size(); begin += piece_bytes) {
    const auto part =
        std::span(piece).first(std::min<uint64_t>(piece_bytes, copy.from.size() - begin));
    tensor.Fill(begin, part);
    FATHOM_RETURN_IF_ERROR(copy.memory->CopyIn(copy.to + begin, part));
  }
  return OkStatus();
}

}  // namespace fathom
