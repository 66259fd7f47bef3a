// Mixture of experts: the choice, and the chosen.
#include <math.h>
#include <string.h>

#include "example.h"

// ln(1 + e^z) without overflow.
static float softplus(float z) {
  const double x = z;
  return (float)(fmax(x, 0.0) + log1p(exp(-fabs(x))));
}

static void score_experts(int scoring, float* p, int64_t n) {
  if (scoring == FATHOM_SQRT_SOFTPLUS) {
    for (int64_t e = 0; e < n; ++e) p[e] = sqrtf(softplus(p[e]));
  } else if (scoring == FATHOM_SIGMOID) {
    for (int64_t e = 0; e < n; ++e) p[e] = sigmoid(p[e]);
  } else {
    float max = p[0], sum = 0.0f;
    for (int64_t e = 0; e < n; ++e) max = p[e] > max ? p[e] : max;
    for (int64_t e = 0; e < n; ++e) sum += p[e] = expf(p[e] - max);
    for (int64_t e = 0; e < n; ++e) p[e] /= sum;
  }
}

// The k largest of p + bias, largest first, equal ones by smaller id.
static void choose_best(const float* p, const float* bias, int64_t n, int32_t* chosen, int64_t k) {
  int64_t num = 0;
  for (int64_t e = 0; e < n; ++e) {
    const float score = p[e] + bias[e];
    int64_t at = num < k ? num : k;
    while (at > 0 && score > p[chosen[at - 1]] + bias[chosen[at - 1]]) --at;
    if (at == k) continue;
    if (num < k) ++num;
    memmove(chosen + at + 1, chosen + at, (size_t)(num - at - 1) * sizeof(*chosen));
    chosen[at] = (int32_t)e;
  }
}

FathomStatus example_route(FathomBackend* b, const FathomRouteArgs* a, FathomError* error) {
  const int64_t n = a->x.shape[0], width = a->x.shape[1], k = a->experts.shape[1];
  const int64_t num_experts = a->gate.rows;
  float* p = b->scores;
  for (int64_t i = 0; i < n; ++i) {
    multiply(b, a->x.data + i * width, 1, &a->gate, 0, p);
    score_experts(a->scoring, p, num_experts);
    int32_t* chosen = a->experts.data + i * k;
    if (a->hash_table.data == NULL) {
      choose_best(p, a->bias.data, num_experts, chosen, k);
    } else {
      const int32_t token = a->token_ids[i];
      for (int64_t s = 0; s < k; ++s) {
        const int64_t expert = a->hash_table.data[token * k + s];
        if (expert < 0 || expert >= num_experts) {
          return fail(error, FATHOM_DATA_LOSS, "tid2eid: token %d names expert %lld of %lld", token,
                      (long long)expert, (long long)num_experts);
        }
        chosen[s] = (int32_t)expert;
      }
    }
    float sum = 0.0f;
    for (int64_t s = 0; s < k; ++s) sum += p[chosen[s]];
    if (a->scoring == FATHOM_SOFTMAX) sum = 1.0f;
    for (int64_t s = 0; s < k; ++s) a->weights.data[i * k + s] = p[chosen[s]] / sum * a->scale;
  }
  return FATHOM_OK;
}

// sum += w2 bf16(weight * silu(w1 x) * (w3 x)).
static void add_expert(FathomBackend* b, const float* x, const FathomExpert* expert, float weight,
                       float limit, float* sum) {
  const int64_t dim = expert->w1.cols, width = expert->w1.rows;
  memcpy(b->x, x, (size_t)dim * sizeof(float));
  quantize_input(b, &expert->w1, b->x, dim);
  multiply(b, b->x, 1, &expert->w1, 1, b->gate);
  multiply(b, b->x, 1, &expert->w3, 1, b->up);
  for (int64_t i = 0; i < width; ++i) {
    float g = b->gate[i], u = b->up[i];
    if (limit > 0.0f) {
      g = limit < g ? limit : g;
      u = u < -limit ? -limit : limit < u ? limit : u;
    }
    b->gate[i] = bf16(b, g / (1.0f + expf(-g)) * u * weight);
  }
  quantize_input(b, &expert->w2, b->gate, width);
  multiply(b, b->gate, 1, &expert->w2, 1, b->y);
  for (int64_t c = 0; c < dim; ++c) sum[c] += b->y[c];
}

FathomStatus example_moe(FathomBackend* b, const FathomMoeArgs* a, FathomError* error) {
  const int64_t n = a->x.shape[0], dim = a->x.shape[1], k = a->experts.shape[1];
  for (int64_t i = 0; i < n * k; ++i) {
    if (a->experts.data[i] < 0 || a->experts.data[i] >= a->num_routed) {
      return fail(error, FATHOM_INVALID_ARGUMENT, "expert id %d of %lld", a->experts.data[i],
                  (long long)a->num_routed);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const float* x = a->x.data + i * dim;
    const int32_t* experts = a->experts.data + i * k;
    memset(b->sum, 0, (size_t)dim * sizeof(float));
    // In ascending order of ids, which are distinct.
    for (int32_t last = -1;;) {
      int64_t next = -1;
      for (int64_t s = 0; s < k; ++s) {
        if (experts[s] > last && (next < 0 || experts[s] < experts[next])) next = s;
      }
      if (next < 0) break;
      last = experts[next];
      add_expert(b, x, &a->routed[last], a->weights.data[i * k + next], a->swiglu_limit, b->sum);
    }
    add_expert(b, x, &a->shared, 1.0f, a->swiglu_limit, b->sum);
    for (int64_t c = 0; c < dim; ++c) a->out.data[i * dim + c] = bf16(b, b->sum[c]);
  }
  return FATHOM_OK;
}
