// OpCases: the operations of a Backend at the sizes of a model, ready to be run over and over.
//
// One case for each call that Model::Forward makes with weights or a cache of its own kind, in its
// order. Single-threaded.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "bench/op_cache.h"
#include "bench/weight_memory.h"
#include "checkpoint/config.h"

namespace fathom::bench {

struct OpCase {
  std::string operation;  // of the Backend, as its file is called
  std::string what;       // which of its calls
  int64_t weight_bytes = 0;
  int64_t cache_bytes = 0;                // entries read or written, each once
  int64_t activation_bytes = 0;           // read or written, each once
  double flop = 0.0;                      // multiplications, additions, divisions, exponentials
  std::function<Status()> run = nullptr;  // with the next weights
  // Operands, of operations that have an unfused form (fusion_bench.h); weights apart.
  std::variant<std::monostate, InverseRopeOutArgs, QNormRopeKvInsertArgs, CompressInsertArgs> args =
      {};
};

// Bytes of all elements.
template <typename... T>
int64_t ViewBytes(const TensorView<T>&... views) {
  return ((views.size() * static_cast<int64_t>(sizeof(T))) + ...);
}
// As a number of operations: without overflow.
inline double Product(std::initializer_list<int64_t> factors) {
  double product = 1.0;
  for (const int64_t factor : factors) product *= static_cast<double>(factor);
  return product;
}

class OpCases {
 public:
  // Those of `only` (all, where it is empty) for a step of `num_rows` tokens of one sequence behind
  // `context` ones. `backend` is prepared for it; it and `weights` must outlive the cases. Inputs
  // of wo_a are as official, or rounded to e4m3.
  static Result<std::unique_ptr<OpCases>> Create(const ModelConfig& config, Backend& backend,
                                                 WeightMemory& weights, int num_rows,
                                                 int64_t context, std::span<const std::string> only,
                                                 bool fp8_o_proj_inputs = false);
  // All operations that there are cases of.
  static std::vector<std::string> Names();

  [[nodiscard]] std::span<const OpCase> cases() const { return cases_; }

 private:
  struct Operation {
    const char* name;
    Status (OpCases::*add)();
  };
  static const std::vector<Operation>& Operations();

  OpCases(const ModelConfig& config, Backend& backend, WeightMemory& weights, int num_rows)
      : config_(config), backend_(backend), weights_(weights), n_(num_rows) {}

  // Each declares the cases of an operation; op_cases_matmul.cc those whose time is in a matrix,
  // op_cases_cache.cc what reads or writes the cache, op_cases.cc the rest.
  Status AddRopeTable();
  Status AddEmbedExpand();
  Status AddHcPreNorm();
  Status AddHcPost();
  Status AddLinears();
  Status AddLinear(const char* what, DType dtype, int cols, int rows, int second_rows,
                   bool round_output);
  Status AddRmsNorm();
  Status AddRoute();
  Status AddMoe();
  Status AddInverseRopeOut();
  Status AddHead();
  Status AddSample();
  Status AddQNormRopeKvInsert();
  Status AddCompressInserts();
  Status AddCompressInsert(const char* what, int ratio, bool index_side);
  Status AddIndexerTopk();
  Status AddSparseAttentions();
  Status AddSparseAttention(const char* what, int ratio);
  // Rows of a bf16 table over the vocabulary that the weights have room for.
  [[nodiscard]] int VocabularyRows() const;
  // Operands in the backend's memory. Where there is no room for one its view is of nothing, and
  // `operands_status_` says so before anybody runs a case.
  template <typename T>
  TensorView<T> Room(std::initializer_list<int64_t> shape);
  template <typename T>
  TensorView<T> CopyOf(std::span<const T> values, std::initializer_list<int64_t> shape);
  // Random values of bf16 in [-1, 1), or room for results.
  TensorView<float> Values(std::initializer_list<int64_t> shape);
  TensorView<float> Constant(float value, std::initializer_list<int64_t> shape);
  // The next fp32 matrix of the weights.
  [[nodiscard]] TensorView<const float> TakeFloats(int rows, int cols) {
    return {static_cast<const float*>(weights_.Take(DType::kF32, rows, cols).data), rows, cols};
  }

  const ModelConfig& config_;
  Backend& backend_;
  WeightMemory& weights_;
  const int n_;
  bool fp8_o_proj_inputs_ = false;
  std::unique_ptr<OpCache> cache_;
  std::vector<DeviceBuffer> operands_;
  Status operands_status_;
  std::vector<TokenId> embed_ids_;
  std::vector<ExpertWeights> experts_;  // all of them twice
  std::vector<int> head_rows_;
  std::vector<OpCase> cases_;
};

}  // namespace fathom::bench
