#include "backend/plugin/test_table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fathom::test {
namespace {

Script script;

FathomStatus Called(const char* name, FathomError* error) {
  script.calls.emplace_back(name);
  if (script.fails != name) return FATHOM_OK;
  script.fails.clear();
  if (script.throws) throw 1;
  // Not ended with a NUL where it fills the buffer.
  std::memcpy(error->message, script.message.c_str(),
              std::min(script.message.size() + 1, sizeof(error->message)));
  return script.status;
}

FathomStatus Create(const FathomCreateArgs* args, FathomBackend** backend, FathomError* error) {
  const FathomStatus status = Called("create", error);
  if (status != FATHOM_OK) return status;
  script.create = *args;
  *backend = script.creates_nothing ? nullptr : new FathomBackend;
  return FATHOM_OK;
}

void Destroy(FathomBackend* backend) {
  script.calls.emplace_back(backend->lent.empty() ? "destroy" : "destroy with memory lent");
  delete backend;
}

FathomStatus Prepare(FathomBackend*, const FathomLimits* limits, FathomError* error) {
  script.limits = *limits;
  return Called("prepare", error);
}

FathomStatus AddWeight(FathomBackend*, const FathomWeight* weight, FathomError* error) {
  script.weight = *weight;
  return Called("add_weight", error);
}

FathomStatus BeginStep(FathomBackend*, const FathomStepPlan* plan, FathomError* error) {
  script.plans.push_back(plan);
  script.plan = *plan;
  return Called("begin_step", error);
}

FathomStatus Synchronize(FathomBackend*, FathomError* error) {
  return Called("synchronize", error);
}

int64_t NumInexactEntries(FathomBackend*) { return script.inexact_entries; }

FathomStatus Allocate(FathomBackend* backend, int64_t bytes, void** data, FathomError* error) {
  const FathomStatus status = Called("allocate", error);
  if (status != FATHOM_OK || script.allocates_nothing) return status;
  const int64_t padded = (bytes + 511) / 256 * 256;
  char* const piece = static_cast<char*>(std::aligned_alloc(256, static_cast<size_t>(padded)));
  *data = piece + script.misaligned_by;
  backend->lent[*data] = script.misaligned_by;
  return FATHOM_OK;
}

void Free(FathomBackend* backend, void* data) {
  script.calls.emplace_back("free");
  std::free(static_cast<char*>(data) - backend->lent.at(data));
  backend->lent.erase(data);
}

FathomStatus Copied(const char* name, void* to, const void* from, int64_t bytes,
                    FathomError* error) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return Called(name, error);
}
FathomStatus CopyIn(FathomBackend*, void* to, const void* from, int64_t bytes, FathomError* error) {
  return Copied("copy_in", to, from, bytes, error);
}
FathomStatus CopyOut(FathomBackend*, void* to, const void* from, int64_t bytes,
                     FathomError* error) {
  return Copied("copy_out", to, from, bytes, error);
}
FathomStatus CopyWithin(FathomBackend*, void* to, const void* from, int64_t bytes,
                        FathomError* error) {
  return Copied("copy_within", to, from, bytes, error);
}

FathomStatus State(FathomBackend*, FathomMemoryState* state, FathomError* error) {
  std::memset(state->name, 'm', sizeof(state->name));  // no NUL
  state->name[1] = '\n';
  state->total_bytes = script.total_bytes;
  state->free_bytes = script.free_bytes;
  return Called("memory_state", error);
}

FathomStatus Linear(FathomBackend*, const FathomLinearArgs* args, FathomError* error) {
  script.linear = *args;
  return Called("linear", error);
}

FathomStatus QNormRopeKvInsert(FathomBackend*, const FathomQNormRopeKvInsertArgs* args,
                               FathomError* error) {
  script.plans.push_back(args->plan);
  script.plan = *args->plan;
  script.pages = args->swa;
  return Called("q_norm_rope_kv_insert", error);
}

FathomStatus IndexerTopk(FathomBackend*, const FathomIndexerTopkArgs* args, FathomError* error) {
  for (int64_t i = 0; i < args->num_entries.shape[0]; ++i) {
    args->num_entries.data[i] = script.kept_entries;
  }
  return Called("indexer_topk", error);
}

FathomStatus Route(FathomBackend*, const FathomRouteArgs* args, FathomError* error) {
  for (int64_t i = 0; i < args->experts.shape[0] * args->experts.shape[1]; ++i) {
    args->experts.data[i] = script.routed_expert;
  }
  return Called("route", error);
}

FathomStatus Moe(FathomBackend*, const FathomMoeArgs* args, FathomError* error) {
  script.moe = *args;
  script.routed.assign(args->routed, args->routed + args->num_routed);
  return Called("moe", error);
}

// Of the operations whose operands no test looks at.
template <typename Args>
FathomStatus Other(FathomBackend*, const Args*, FathomError* error) {
  return Called("other", error);
}

}  // namespace

Script& TheScript() { return script; }

void Reset() { script = {}; }

FathomBackendTable RecordingTable() {
  FathomBackendTable t = {};
  t.major = FATHOM_PLUGIN_MAJOR;
  t.minor = FATHOM_PLUGIN_MINOR;
  t.struct_size = sizeof(t);
  std::strcpy(t.name, "recorder");
  t.numerics = 1u << FATHOM_OFFICIAL | 1u << FATHOM_EXACT;
  t.encodings = (2u << FATHOM_ENTRY_E4M3_SCALED) - 1;
  t.host_readable = 1;
  t.create = Create;
  t.destroy = Destroy;
  t.prepare = Prepare;
  t.add_weight = AddWeight;
  t.begin_step = BeginStep;
  t.synchronize = Synchronize;
  t.num_inexact_entries = NumInexactEntries;
  t.allocate = Allocate;
  t.free = Free;
  t.copy_in = CopyIn;
  t.copy_out = CopyOut;
  t.copy_within = CopyWithin;
  t.memory_state = State;
  t.rope_table = Other<FathomRopeTableArgs>;
  t.embed_expand = Other<FathomEmbedExpandArgs>;
  t.hc_pre_norm = Other<FathomHcPreNormArgs>;
  t.hc_post = Other<FathomHcPostArgs>;
  t.rms_norm = Other<FathomRmsNormArgs>;
  t.linear = Linear;
  t.q_norm_rope_kv_insert = QNormRopeKvInsert;
  t.compress_insert = Other<FathomCompressInsertArgs>;
  t.indexer_topk = IndexerTopk;
  t.sparse_attention = Other<FathomSparseAttentionArgs>;
  t.inverse_rope_out = Other<FathomInverseRopeOutArgs>;
  t.route = Route;
  t.moe = Moe;
  t.head = Other<FathomHeadArgs>;
  return t;
}

std::vector<RequiredFunction> RequiredFunctions() {
  std::vector<RequiredFunction> functions;
#define FATHOM_ADD(field) functions.push_back({#field, offsetof(FathomBackendTable, field)})
  FATHOM_ADD(create);
  FATHOM_ADD(destroy);
  FATHOM_ADD(prepare);
  FATHOM_ADD(num_inexact_entries);
  FATHOM_ADD(allocate);
  FATHOM_ADD(free);
  FATHOM_ADD(copy_in);
  FATHOM_ADD(copy_out);
  FATHOM_ADD(copy_within);
  FATHOM_ADD(memory_state);
  FATHOM_ADD(rope_table);
  FATHOM_ADD(embed_expand);
  FATHOM_ADD(hc_pre_norm);
  FATHOM_ADD(hc_post);
  FATHOM_ADD(rms_norm);
  FATHOM_ADD(linear);
  FATHOM_ADD(q_norm_rope_kv_insert);
  FATHOM_ADD(compress_insert);
  FATHOM_ADD(indexer_topk);
  FATHOM_ADD(sparse_attention);
  FATHOM_ADD(inverse_rope_out);
  FATHOM_ADD(route);
  FATHOM_ADD(moe);
  FATHOM_ADD(head);
#undef FATHOM_ADD
  return functions;
}

}  // namespace fathom::test
