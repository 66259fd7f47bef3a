// What `fathom serve` says to each flag of vLLM. The lists here follow vLLM's documentation, not
// the table in vllm_flags.cc.
#include "cli/serve_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "cli/serve_options.h"

namespace fathom::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Values = std::vector<std::string>;

struct Outcome {
  ServeArguments given;
  ServeOptions options;
  std::string config;
};

// As the program does it, without running anything.
Outcome Give(const Values& arguments, const Environment& environment = {}) {
  Outcome outcome;
  CLI::App app("fathom", "fathom");
  app.set_help_all_flag("--help-all", "");
  CLI::App* serve = app.add_subcommand("serve", "");
  AddServeOptions(*serve, outcome.options);
  std::string log_level;
  serve->add_option("--log-level", log_level, "");
  outcome.given = PrepareServeArguments(*serve, arguments, environment,
                                        [&outcome] { return CheckServeOptions(outcome.options); });
  outcome.config = ConfigText(*serve, outcome.given.settings);
  if (outcome.given.problems.empty() && outcome.given.next == ServeArguments::Next::kRun) {
    Values words = outcome.given.arguments;
    words.insert(words.begin(), "serve");
    std::reverse(words.begin(), words.end());
    app.parse(words);  // what was prepared must suit the parser: an exception fails the test
  }
  return outcome;
}

struct Case {
  Values arguments;
  Verdict want;
};
constexpr auto kA = Verdict::kFine;
constexpr auto kW = Verdict::kWarn;
constexpr auto kR = Verdict::kRefuse;

const std::vector<Case> kCases = {
    // 6.2, in its order.
    {{"some/model"}, kA},
    {{"--model", "some/model"}, kA},
    {{"--trust-remote-code"}, kW},
    {{"--no-trust-remote-code"}, kA},
    {{"--kv-cache-dtype", "auto"}, kA},
    {{"--kv-cache-dtype", "fp8"}, kA},
    {{"--kv-cache-dtype", "fp8_e4m3"}, kA},
    {{"--kv-cache-dtype", "fp8_ds_mla"}, kA},
    {{"--kv-cache-dtype", "bfloat16"}, kA},
    {{"--kv-cache-dtype", "fp8_e5m2"}, kR},
    {{"--kv-cache-dtype", "int8_per_token_head"}, kR},
    {{"--kv-cache-dtype", "nvfp4"}, kR},
    {{"--kv-cache-dtype", "turboquant_4bit_nc"}, kR},
    {{"--block-size", "256"}, kA},
    {{"--block-size", "16"}, kR},
    {{"--enable-expert-parallel"}, kW},
    {{"-ep"}, kW},
    {{"--data-parallel-size", "1"}, kA},
    {{"--data-parallel-size", "4"}, kR},
    {{"-dp", "8"}, kR},
    {{"--tensor-parallel-size", "1"}, kA},
    {{"-tp=2"}, kR},
    {{"--pipeline-parallel-size", "1"}, kA},
    {{"-pp", "2"}, kR},
    {{"--compilation-config", R"({"cudagraph_mode":"NONE"})"}, kA},
    {{"--compilation-config", R"({"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]})"},
     kW},
    {{"-cc", R"({"mode":0,"cudagraph_capture_sizes":[1,2],"max_cudagraph_capture_size":8})"}, kW},
    {{"-cc.cudagraph_mode=FULL_DECODE_ONLY"}, kW},
    {{"-cc.cudagraph_mode=FULL_DECODE_ONLY", "--backend", "cuda"}, kA},
    {{"-cc.cudagraph_mode=FULL", "--backend-plugin", "x.so"}, kW},
    {{"-cc.cudagraph_mode=HALF"}, kR},
    {{"-cc.cudagraph_capture_sizes=[1,-2]"}, kR},
    {{"-cc.cudagraf_mode=FULL"}, kR},
    {{"--compilation-config", "{mode:0}"}, kR},
    {{"--attention_config.use_fp4_indexer_cache=True"}, kA},
    {{"--attention_config.use_fp4_indexer_cache", "True"}, kA},
    {{"--attention-config", R"({"use_fp4_indexer_cache": true})"}, kA},
    {{"--attention-config", R"({"use_fp4_index": true})"}, kR},
    {{"--attention-config.use_fp4_indexer_cache", "maybe"}, kR},
    {{"--attention-backend", "FLASHMLA_SPARSE"}, kW},
    {{"--moe-backend", "deep_gemm_mega_moe"}, kW},
    {{"--moe-backend", "auto"}, kA},
    {{"--linear-backend", "marlin"}, kW},
    {{"--tokenizer-mode", "auto"}, kA},
    {{"--tokenizer-mode", "deepseek_v4"}, kA},
    {{"--tokenizer-mode", "mistral"}, kR},
    {{"--tool-call-parser", "deepseek_v4"}, kA},
    {{"--tool-call-parser", "deepseek-v4"}, kA},
    {{"--tool-call-parser", "deepseekv4"}, kA},
    {{"--tool-call-parser", "none"}, kA},
    {{"--tool-call-parser", "hermes"}, kR},
    {{"--enable-auto-tool-choice"}, kA},
    {{"--no-enable-auto-tool-choice"}, kA},
    {{"--reasoning-parser", "deepseek_v4"}, kA},
    {{"--reasoning-parser", "deepseek_r1"}, kR},
    {{"--reasoning-config", R"({"reasoning_parser":"deepseek_v4","reasoning_start_str":""})"}, kA},
    {{"--reasoning-config.reasoning_end_str", "</think>"}, kA},
    {{"--reasoning-config.reasoning_end_str", "</thought>"}, kR},
    {{"--reasoning-config.reasoning_parser", "qwen3"}, kR},
    {{"--default-chat-template-kwargs", R"({"thinking": true, "reasoning_effort": "max"})"}, kA},
    {{"--default-chat-template-kwargs.thinking=false"}, kA},
    {{"--default-chat-template-kwargs.thinks=false"}, kR},
    {{"--speculative-config", R"({"method":"mtp","num_speculative_tokens":1})"}, kR},
    {{"--speculative-config.num_speculative_tokens", "0"}, kA},
    {{"--kv-transfer-config", R"({"kv_connector":"NixlConnector","kv_role":"kv_both"})"}, kR},
    {{"--kv-transfer-config", "{}"}, kA},
    {{"--max-model-len", "1048576"}, kA},
    {{"--max-model-len", "auto"}, kA},
    {{"--max-model-len", "-1"}, kA},
    {{"--max-model-len", "800k"}, kA},
    {{"--max-model-len", "1.5k"}, kR},
    {{"--max-num-seqs", "256", "--max-num-batched-tokens", "8192"}, kA},
    {{"--gpu-memory-utilization", "0.92"}, kA},
    {{"--gpu-memory-utilization", "0.95"}, kR},
    {{"--gpu-memory-utilization", "0.95", "--backend", "cuda"}, kA},
    {{"--gpu-memory-utilization", "1.5", "--backend", "cuda"}, kR},
    {{"--kv-cache-memory-fraction", "0.5"}, kA},
    {{"--kv-cache-memory-fraction", "0.5", "--backend", "cuda"}, kR},
    {{"--gpu-memory-utilization", "0.95", "--backend-plugin", "x.so"}, kA},
    {{"--kv-cache-memory-fraction", "0.5", "--backend-plugin", "x.so"}, kA},
    {{"--kv-cache-memory-bytes", "20G"}, kA},
    {{"--enable-prefix-caching"}, kA},
    {{"--no-enable-prefix-caching"}, kA},
    {{"--enable-chunked-prefill"}, kA},
    {{"--no-enable-chunked-prefill"}, kR},
    {{"--enforce-eager"}, kA},
    {{"--cuda-device", "0"}, kA},
    {{"--cuda-device", "1"}, kR},
    {{"--cuda-device", "1", "--backend", "cuda"}, kA},
    {{"--cuda-device", "-1", "--backend", "cuda"}, kR},
    {{"--serial-streams"}, kA},
    {{"--serial-streams", "--backend", "cuda"}, kA},
    {{"--batch-invariant"}, kA},
    {{"--no-batch-invariant"}, kW},
    {{"-cc.cudagraph_mode=FULL", "--enforce-eager"}, kW},
    {{"--enforce-eager", "-cc.cudagraph_mode=FULL", "--backend=cuda"}, kR},
    {{"--max-cudagraph-capture-size", "512"}, kW},
    {{"--max-cudagraph-capture-size", "512", "--backend", "cuda"}, kA},
    {{"--max-cudagraph-capture-size", "0"}, kA},
    {{"--max-cudagraph-capture-size", "-1"}, kR},
    {{"--cudagraph-capture-sizes", "1", "2", "4"}, kW},
    {{"--cudagraph-capture-sizes", "1", "2", "4", "--backend", "cuda"}, kA},
    {{"--cudagraph-capture-sizes", "1", "two"}, kR},
    {{"--cudagraph-capture-sizes", "0"}, kR},
    {{"--distributed-executor-backend", "mp"}, kW},
    {{"--distributed-executor-backend", "uni"}, kW},
    {{"--distributed-executor-backend", "ray"}, kR},
    {{"--no-disable-hybrid-kv-cache-manager"}, kW},
    {{"--disable-hybrid-kv-cache-manager"}, kR},
    {{"--disable-uvicorn-access-log"}, kA},
    {{"--no-enable-flashinfer-autotune"}, kW},
    {{"--enable-flashinfer-autotune"}, kW},
    {{"--enable-sleep-mode"}, kW},
    {{"--load-format", "auto"}, kA},
    {{"--load-format", "safetensors"}, kA},
    {{"--load-format", "dummy"}, kR},
    {{"--load-format", "instanttensor"}, kW},
    {{"--data-parallel-hybrid-lb"}, kR},
    {{"--data-parallel-size-local", "4"}, kR},
    {{"--data-parallel-start-rank", "4"}, kR},
    {{"--data-parallel-address", "10.0.0.1"}, kR},
    {{"--data-parallel-rpc-port", "13345"}, kR},
    {{"--headless"}, kR},
    {{"--api-server-count", "4"}, kR},
    {{"--api-server-count", "1"}, kA},
    {{"--enable-eplb"}, kW},
    {{"--eplb-config.window_size", "1000"}, kW},
    {{"--eplb-config", R"({"window_size":1000})"}, kW},
    {{"--all2all-backend", "deepep_low_latency"}, kW},
    {{"--cpu-offload-gb", "0"}, kA},
    {{"--cpu-offload-gb", "100"}, kR},
    {{"--cpu-offload-gb", "100", "--backend", "cuda"}, kA},
    {{"--cpu-offload-gb", "many", "--backend", "cuda"}, kR},
    {{"--expert-offload", "auto", "--backend", "cuda"}, kA},
    {{"--expert-offload", "auto"}, kR},
    {{"--expert-offload", "20G", "--backend", "cuda"}, kR},
    {{"--expert-profile", "use.json"}, kR},
    {{"--expert-profile", "use.json", "--backend", "cuda"}, kA},
    {{"--record-expert-use", "use.json"}, kA},
    {{"--kv-offloading-size", "64"}, kR},
    {{"--kv-offloading-backend", "native"}, kA},
    {{"--kv-offloading-backend", "lmcache"}, kR},
    {{"--host", "0.0.0.0", "--port", "8000"}, kA},
    // 6.3.
    {{"--speculative-config", R"({"method":"eagle3"})"}, kR},
    {{"--speculative-config", R"({"methode":"mtp"})"}, kR},
    {{"--kv-transfer-config.kv_rol", "kv_both"}, kR},
    {{"--kv-transfer-config.kv_connector", "LMCacheConnectorV1"}, kR},
    {{"--kv-events-config", R"({"publisher":"zmq"})"}, kW},
    {{"--override-generation-config", R"({"temperature":1.0,"top_p":0.95})"}, kA},
    {{"--override-generation-config.top_k", "20"}, kA},
    {{"--override-generation-config.temperatur", "1"}, kR},
    {{"--override-generation-config.temperature", "99"}, kR},
    {{"--generation-config", "auto"}, kA},
    {{"--generation-config", "vllm"}, kA},
    {{"--hf-overrides", R"({"max_position_embeddings": 65536})"}, kA},
    {{"--hf-overrides.rope_theta", "1"}, kR},
    // 6.5, in its order.
    {{"--served-model-name", "a", "b"}, kA},
    {{"--api-key", "a", "--api-key", "b"}, kA},
    {{"--uds", "/tmp/s"}, kA},
    {{"--root-path", "/x"}, kA},
    {{"--ssl-keyfile", "k", "--ssl-certfile", "c", "--ssl-ca-certs", "a"}, kA},
    {{"--ssl-keyfile", "k"}, kR},
    {{"--allowed-origins", R"(["*"])", "--allowed-methods", R"(["GET"])", "--allowed-headers",
      R"(["*"])", "--allow-credentials"},
     kA},
    {{"--seed", "0"}, kA},
    {{"--dtype", "auto"}, kA},
    {{"--dtype", "bfloat16"}, kA},
    {{"--dtype", "float16"}, kR},
    {{"--max-logprobs", "20"}, kA},
    {{"--return-tokens-as-token-ids"}, kA},
    {{"--enable-prompt-tokens-details"}, kA},
    {{"--enable-force-include-usage"}, kA},
    {{"--scheduling-policy", "fcfs"}, kA},
    {{"--scheduling-policy", "priority"}, kA},
    {{"--async-scheduling"}, kW},
    {{"--async-scheduling", "--backend", "cuda"}, kA},
    {{"--no-async-scheduling"}, kA},
    {{"--stream-interval", "1"}, kA},
    {{"--stream-interval", "8"}, kA},
    {{"--max-num-partial-prefills", "1"}, kA},
    {{"--max-num-partial-prefills", "2"}, kR},
    {{"--max-long-partial-prefills", "1"}, kA},
    {{"--max-long-partial-prefills", "2"}, kR},
    {{"--long-prefill-token-threshold", "0"}, kA},
    {{"--long-prefill-token-threshold", "1024"}, kR},
    {{"--watermark", "0.05"}, kR},
    {{"--scheduler-reserve-full-isl"}, kA},
    {{"--no-scheduler-reserve-full-isl"}, kR},
    {{"--num-gpu-blocks-override", "100"}, kR},
    {{"--prefix-caching-hash-algo", "sha256"}, kA},
    {{"--prefix-caching-hash-algo", "xxhash"}, kW},
    {{"--prefix-match-unit", "256"}, kA},
    {{"--prefix-match-unit", "16"}, kR},
    {{"--prefix-cache-retention-interval", "4096"}, kA},
    {{"--download-dir", "/models"}, kA},
    {{"--revision", "main"}, kA},
    {{"--hf-token", "hf_x"}, kW},
    {{"--tokenizer", "/t", "--tokenizer-revision", "main"}, kA},
    {{"--tokenizer-revision", "main"}, kR},
    {{"--quantization", "fp8"}, kA},
    {{"-q", "deepseek_v4_fp8"}, kA},
    {{"--quantization", "awq"}, kR},
    {{"--chat-template", "examples/tool_chat_template_deepseekv4.jinja"}, kW},
    {{"--chat-template", "mine.jinja"}, kR},
    {{"--chat-template-content-format", "openai"}, kW},
    {{"--enable-log-requests", "--max-log-len", "100"}, kA},
    {{"--disable-log-stats"}, kA},
    {{"--uvicorn-log-level", "warning"}, kA},
    {{"--log-config-file", "x.json"}, kW},
    {{"--otlp-traces-endpoint", "http://x"}, kW},
    {{"--collect-detailed-traces", "all"}, kW},
    {{"--show-hidden-metrics-for-version", "0.9"}, kW},
    {{"--kv-cache-metrics"}, kW},
    {{"--kv-cache-metrics-sample", "0.1"}, kW},
    {{"--enable-mfu-metrics"}, kW},
    {{"--enable-server-load-tracking"}, kA},
    {{"--shutdown-timeout", "10"}, kA},
    {{"--disable-fastapi-docs"}, kW},
    {{"--middleware", "my.thing"}, kR},
    {{"--response-role", "assistant"}, kA},
    {{"--structured-outputs-config", R"({"backend":"auto"})"}, kA},
    {{"--structured-outputs-config.backend", "xgrammar"}, kW},
    {{"--guided-decoding-backend", "outlines"}, kR},
    {{"--swap-space", "4"}, kW},
    {{"--use-v2-block-manager"}, kW},
    {{"--num-scheduler-steps", "8"}, kW},
    {{"--worker-use-ray"}, kW},
    {{"--disable-frontend-multiprocessing"}, kW},
    {{"--enable-dbo"}, kW},
    {{"--enable-lora"}, kR},
    {{"--lora-modules", "a=b", "c=d"}, kR},
    {{"--limit-mm-per-prompt", R"({"image": 0})"}, kW},
    {{"--language-model-only"}, kW},
    {{"--decode-context-parallel-size", "1"}, kA},
    {{"-dcp", "2"}, kR},
    {{"--prefill-context-parallel-size", "2"}, kR},
    {{"--mm-processor-cache-gb", "0"}, kR},
    {{"--task", "embed"}, kR},
    {{"--task", "generate"}, kA},
    {{"--runner", "pooling"}, kR},
    {{"--nnodes", "1"}, kA},
    {{"--nnodes", "2"}, kR},
    {{"--node-rank", "1"}, kR},
    {{"--master-addr", "10.0.0.1"}, kR},
    {{"--master-port", "1234"}, kR},
    {{"--data-parallel-backend", "ray"}, kR},
    {{"--exclude-tools-when-tool-choice-none"}, kA},
    {{"--enable-request-id-headers"}, kA},
    {{"--reasoning-effort-profile", "0731"}, kA},
    {{"--official-user-content"}, kA},
};

TEST(VllmFlags, EachHasItsClass) {
  for (const Case& c : kCases) {
    std::string line;
    for (const std::string& word : c.arguments) line += word + " ";
    SCOPED_TRACE(line);
    const ServeArguments given = Give(c.arguments).given;
    std::string name = c.arguments.front().substr(0, c.arguments.front().find_first_of(".="));
    std::replace(name.begin(), name.end(), '_', '-');
    if (name.rfind("--", 0) != 0) name = "--";  // a short name is answered with the long one
    if (c.want == kR) {
      ASSERT_THAT(given.problems, SizeIs(1));
      EXPECT_THAT(given.problems.front(), HasSubstr(name));
    } else {
      EXPECT_THAT(given.problems, IsEmpty());
      ASSERT_THAT(given.warnings, SizeIs(c.want == kW ? 1 : 0));
      if (c.want == kW) {
        EXPECT_THAT(given.warnings.front(), HasSubstr(name));
        EXPECT_THAT(given.warnings.front(), HasSubstr("no effect; "));
        // Behind the colon stands what fathom does instead.
        EXPECT_GT(given.warnings.front().size(), given.warnings.front().find("effect; ") + 12);
      }
    }
  }
}

TEST(VllmFlags, TheTableHasEachNameOnceAndNoneOfOurOptions) {
  CLI::App serve;
  ServeOptions options;
  AddServeOptions(serve, options);
  std::vector<std::string_view> seen;
  for (const VllmFlag& flag : VllmFlags()) {
    EXPECT_EQ(serve.get_option_no_throw("--" + std::string(flag.name)), nullptr) << flag.name;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), flag.name), 0) << flag.name;
    seen.push_back(flag.name);
    EXPECT_EQ(flag.name.find('_'), std::string_view::npos) << flag.name;
  }
  const FlagCatalogue catalogue = CatalogueOf(serve);
  for (const char* short_name : {"tp", "dp", "pp", "ep", "dcp", "cc", "ac", "sc", "q", "O"}) {
    EXPECT_NE(catalogue.Find(LongNameOf(short_name)), nullptr) << short_name;
  }
}

// The lines that articles and recipes give for one node with Flash and Pro.
const Values kFlash = {"deepseek-ai/DeepSeek-V4-Flash",
                       "--trust-remote-code",
                       "--kv-cache-dtype",
                       "fp8",
                       "--block-size",
                       "256",
                       "--enable-expert-parallel",
                       "--data-parallel-size",
                       "4",
                       "--compilation-config",
                       R"({"cudagraph_mode":"FULL_AND_PIECEWISE", "custom_ops":["all"]})",
                       "--attention_config.use_fp4_indexer_cache=True",
                       "--tokenizer-mode",
                       "deepseek_v4",
                       "--tool-call-parser",
                       "deepseek_v4",
                       "--enable-auto-tool-choice",
                       "--reasoning-parser",
                       "deepseek_v4"};

TEST(Articles, TheListForFlashLacksOnlyDevices) {
  Outcome outcome = Give(kFlash);
  EXPECT_THAT(outcome.given.problems, ElementsAre(HasSubstr("--data-parallel-size 4: refused")));
  Values one = kFlash;
  *std::find(one.begin(), one.end(), "4") = "1";
  outcome = Give(one);
  EXPECT_THAT(outcome.given.problems, IsEmpty());
  EXPECT_THAT(outcome.given.warnings,
              ElementsAre(HasSubstr("--enable-expert-parallel"), HasSubstr("--trust-remote-code"),
                          HasSubstr("--compilation-config")));
  EXPECT_EQ(outcome.options.model.model, "deepseek-ai/DeepSeek-V4-Flash");
  EXPECT_EQ(outcome.options.cache.attention_dtype, "fp8");
  EXPECT_TRUE(outcome.options.api.auto_tool_choice);
}

TEST(Articles, TheListForProIsRefusedInOneRunByAllNames) {
  Values pro = kFlash;
  pro.front() = "deepseek-ai/DeepSeek-V4-Pro";
  *std::find(pro.begin(), pro.end(), "4") = "8";
  const Values more = {"--max-model-len",
                       "800000",
                       "--max-num-seqs",
                       "16",
                       "--gpu-memory-utilization",
                       "0.95",
                       "--speculative-config",
                       R"({"method":"mtp","num_speculative_tokens":1})",
                       "--moe-backend",
                       "deep_gemm_mega_moe",
                       "--no-enable-flashinfer-autotune",
                       "--port",
                       "8000",
                       "--kv-transfer-config",
                       R"({"kv_connector":"MooncakeConnector","kv_role":"kv_consumer"})",
                       "--no-disable-hybrid-kv-cache-manager",
                       "--disable-uvicorn-access-log"};
  pro.insert(pro.end(), more.begin(), more.end());
  const Outcome outcome = Give(pro);
  EXPECT_THAT(outcome.given.problems,
              ElementsAre(HasSubstr("--data-parallel-size 8: refused"),
                          AllOf(HasSubstr("--kv-transfer-config"), HasSubstr("MooncakeConnector")),
                          AllOf(HasSubstr("--speculative-config"), HasSubstr("mtp")),
                          HasSubstr("--gpu-memory-utilization 0.95: refused")));
}

TEST(ServeArguments, ProblemsOfAllKindsComeTogether) {
  const Outcome outcome =
      Give({"--port", "70000", "--max-modl-len", "8", "-tp", "2", "--config", "/no/such.yaml",
            "--scheduling-policy", "lifo"},
           {{"FATHOM_MAX_LOGPROBS", "9999"}, {"VLLM_SERVER_DEV_MODE", "maybe"}});
  EXPECT_THAT(outcome.given.problems,
              testing::UnorderedElementsAre(
                  HasSubstr("--port"), HasSubstr("did you mean --max-model-len?"),
                  HasSubstr("--tensor-parallel-size 2: refused"), HasSubstr("/no/such.yaml"),
                  HasSubstr("--scheduling-policy"), HasSubstr("FATHOM_MAX_LOGPROBS: "),
                  HasSubstr("VLLM_SERVER_DEV_MODE=maybe")));
}

TEST(ServeArguments, ValuesReachTheOptions) {
  const Outcome outcome = Give({"--max-model-len",
                                "8K",
                                "--kv_cache_memory_bytes=2G",
                                "--served-model-name",
                                "a",
                                "b",
                                "--api-key=k1",
                                "--api-key",
                                "--k2",
                                "--no-enable-auto-tool-choice",
                                "--tool-call-parser",
                                "none",
                                "--allowed-origins",
                                R"(["https://a", "https://b"])",
                                "--allow-credentials",
                                "--max-log-len=80",
                                "--seed",
                                "0",
                                "--default-chat-template-kwargs.thinking=False",
                                "--uds=/tmp/s",
                                "--response-role",
                                "bot",
                                "--enable-log-requests",
                                "--port",
                                "0"},
                               {{"VLLM_LOG_STATS_INTERVAL", "1"}, {"FATHOM_ROOT_PATH", "/api"}});
  EXPECT_THAT(outcome.given.problems, IsEmpty());
  const ServeOptions& o = outcome.options;
  EXPECT_EQ(o.model.max_model_len, 8192);
  EXPECT_EQ(o.cache.memory_bytes, int64_t{2} << 30);
  EXPECT_THAT(o.api.served_model_names, ElementsAre("a", "b"));
  EXPECT_THAT(o.api.api_keys, ElementsAre("k1", "--k2"));
  EXPECT_FALSE(o.api.auto_tool_choice);
  EXPECT_EQ(o.tool_call_parser, "none");
  EXPECT_THAT(o.api.cors.allowed_origins, ElementsAre("https://a", "https://b"));
  EXPECT_THAT(o.api.cors.allowed_methods, ElementsAre("*"));
  EXPECT_TRUE(o.api.cors.allow_credentials);
  EXPECT_EQ(o.api.max_log_len, 80);
  EXPECT_EQ(o.seed, 0);
  EXPECT_EQ(o.chat_defaults, R"({"thinking":false})");
  EXPECT_EQ(o.api.unix_socket, "/tmp/s");
  EXPECT_EQ(o.api.response_role, "bot");
  EXPECT_TRUE(o.api.log_requests);
  EXPECT_EQ(o.api.port, 0);
  EXPECT_EQ(o.stats_interval_s, 1.0);
  EXPECT_EQ(o.api.root_path, "/api");
}

TEST(ServeArguments, VllmsVariablesAreRead) {
  const Outcome outcome = Give({}, {{"VLLM_API_KEY", "k"},
                                    {"VLLM_ENGINE_READY_TIMEOUT_S", "3600"},
                                    {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "4096"},
                                    {"VLLM_SERVER_DEV_MODE", "1"},
                                    {"VLLM_CPU_KVCACHE_SPACE", "3"},
                                    {"VLLM_USE_DEEP_GEMM", "1"}});
  EXPECT_THAT(outcome.given.problems, IsEmpty());
  EXPECT_THAT(outcome.options.api.api_keys, ElementsAre("k"));
  EXPECT_EQ(outcome.options.ready_timeout_s, 3600);
  EXPECT_EQ(outcome.options.retention_interval, "4096");
  EXPECT_TRUE(outcome.options.api.dev_endpoints);
  EXPECT_EQ(outcome.options.cache.memory_bytes, int64_t{3} << 30);
  EXPECT_THAT(outcome.given.notes, ElementsAre(HasSubstr("VLLM_USE_DEEP_GEMM")));
}

// Random lines: all end in problems, or in what the parser takes (Give fails where it does not).
TEST(ServeArguments, WhatIsPreparedSuitsTheParser) {
  const Values words = {"--port",
                        "--port=1",
                        "8000",
                        "-1",
                        "--max_model_len",
                        "8K",
                        "auto",
                        "--served-model-name",
                        "--api-key",
                        "--allowed-origins",
                        R"(["a","[b]"])",
                        "[x]",
                        "",
                        "--",
                        "-",
                        "-m",
                        "-t4",
                        "-t",
                        "-tp",
                        "-cc.mode",
                        "-cc",
                        "{}",
                        R"({"thinking": true})",
                        "--default-chat-template-kwargs",
                        "--default-chat-template-kwargs.thinking=True",
                        "--enable-prefix-caching",
                        "--no-enable-prefix-caching",
                        "--enable-log-requests=false",
                        "--trust-remote-code",
                        "--seed",
                        "--model-alias",
                        "a={}",
                        "--kv-cache-dtype=fp8",
                        "--root-path=",
                        "--tool-call-parser",
                        "none",
                        "=",
                        "--=",
                        "--.",
                        "--no-",
                        "-.",
                        "-=",
                        "model"};
  std::mt19937 random(11);
  int good = 0;
  for (int round = 0; round < 3000; ++round) {
    Values arguments;
    for (auto n = random() % 6; n > 0; --n) arguments.push_back(words[random() % words.size()]);
    std::string line;
    for (const std::string& word : arguments) line += "'" + word + "' ";
    SCOPED_TRACE(line);
    ASSERT_NO_THROW(good += Give(arguments).given.problems.empty() ? 1 : 0);
  }
  EXPECT_GT(good, 300);
}

class TempFile {
 public:
  explicit TempFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("fathom_serve_arguments_" + std::to_string(::getpid()))) {
    std::ofstream(path_) << text;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Values by name, JSON in one form.
std::map<std::string, Values> ValuesOf(const Settings& settings) {
  std::map<std::string, Values> values;
  for (const auto& [name, setting] : settings.values) {
    if (name != "config" && name != "print-config") values[name] = setting.values;
  }
  return values;
}

TEST(PrintConfig, GivenAsAFileItMeansTheSame) {
  const Values arguments = {"--print-config",
                            "some dir/model: #1",
                            "--max-model-len",
                            "800K",
                            "--no-enable-prefix-caching",
                            "--served-model-name",
                            "null",
                            "a,b",
                            "--served-model-name=-1.5 [x]",
                            "--model-alias",
                            R"(quick={"thinking": false})",
                            "--default-chat-template-kwargs.thinking=True",
                            "-cc.custom_ops+",
                            "all",
                            "-cc.custom_ops+",
                            "\"1\"",
                            "-cc.mode=0",
                            "--reasoning-effort-profile",
                            "0731",
                            "--trust-remote-code",
                            "--cudagraph-capture-sizes",
                            "1",
                            "2",
                            "--hf-overrides",
                            R"({"max_position_embeddings":1048576})",
                            "--host",
                            "::1",
                            "--root-path",
                            "\xc3\xa4 \"quoted\" \\ \t"};
  const Outcome first = Give(arguments);
  EXPECT_THAT(first.given.problems, IsEmpty());
  EXPECT_EQ(first.given.next, ServeArguments::Next::kPrintConfig);
  const TempFile file(first.config);
  const Outcome second = Give({"--config", file.path(), "--print-config"});
  EXPECT_THAT(second.given.problems, IsEmpty()) << first.config;
  // All that was given has come back, and beside it what was a default.
  const auto got = ValuesOf(second.given.settings);
  for (const auto& [name, values] : ValuesOf(first.given.settings)) {
    EXPECT_EQ(got.at(name), values) << name;
  }
  // A second time there is nothing new: the texts differ in origins only.
  const TempFile again(second.config);
  EXPECT_EQ(Give({"--config", again.path(), "--print-config"}).config, second.config);
}

TEST(ServeArguments, GraphsReachTheEngine) {
  const Outcome read =
      Give({"-cc.cudagraph_mode=FULL_DECODE_ONLY", "-cc.custom_ops+", "all",
            "--cudagraph-capture-sizes", "1", "2", "4", "--max-cudagraph-capture-size=2"},
           {{"FATHOM_BACKEND", "cuda"}});
  EXPECT_THAT(read.given.problems, IsEmpty());
  EXPECT_THAT(read.given.warnings, IsEmpty());  // ToEngineOptions has that of custom_ops
  const auto engine = ToEngineOptions(read.options.model);
  ASSERT_TRUE(engine.ok());
  ASSERT_TRUE(engine->graphs.has_value());
  EXPECT_EQ(engine->graphs->mode, GraphMode::kFullDecodeOnly);
  EXPECT_THAT(engine->graphs->sizes, ElementsAre(1, 2));
  const Outcome eager = Give({"--backend", "cuda"}, {{"FATHOM_ENFORCE_EAGER", "1"}});
  EXPECT_THAT(eager.given.problems, IsEmpty());
  EXPECT_EQ(ToEngineOptions(eager.options.model)->graphs->mode, GraphMode::kNone);
  EXPECT_THAT(eager.config, HasSubstr("\nenforce-eager: true  # FATHOM_ENFORCE_EAGER\n"));
  EXPECT_THAT(Give({}).config, HasSubstr("\nenforce-eager: false  # default\n"));
  EXPECT_FALSE(engine->serial_streams);
  EXPECT_TRUE(ToEngineOptions(Give({"--serial-streams"}).options.model)->serial_streams);
}

TEST(ServeArguments, VllmsNameOfAnOptionIsThatOption) {
  for (const Values& arguments : {Values{"--cpu-offload-gb", "20"}, {"--cpu_offload_gb=20"}}) {
    Values all = {"--backend", "cuda"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome read = Give(all);
    EXPECT_THAT(read.given.problems, IsEmpty());
    EXPECT_EQ(read.options.model.expert_offload, "20");
    EXPECT_THAT(read.config, HasSubstr("\nexpert-offload: 20  # command line\n"));
    const auto engine = ToEngineOptions(read.options.model);
    ASSERT_TRUE(engine.ok());
    EXPECT_EQ(engine->expert_offload.bytes, int64_t{20} << 30);
  }
  const TempFile file("backend: cuda\ncpu_offload_gb: 0.5\n");
  const Outcome read = Give({"--config", file.path()});
  EXPECT_THAT(read.given.problems, IsEmpty());
  EXPECT_EQ(read.options.model.expert_offload, "0.5");
}

TEST(ServeArguments, PlacesOfWeightsAndThreadsComeFromAllSources) {
  const TempFile file("weights: copy\nnuma: off\n");
  const Outcome read = Give({"--config", file.path()}, {{"FATHOM_WEIGHTS", "hugepages"}});
  EXPECT_THAT(read.given.problems, IsEmpty());
  EXPECT_EQ(read.options.model.weights, "hugepages");
  EXPECT_EQ(read.options.model.numa, "off");
  const auto engine = ToEngineOptions(read.options.model);
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ(engine->weights, WeightsMode::kHugePages);
  EXPECT_EQ(engine->numa, NumaMode::kOff);
  const Outcome none = Give({});
  EXPECT_EQ(none.options.model.weights, "mmap");
  EXPECT_EQ(none.options.model.numa, "auto");
  const Outcome bad = Give({"--weights", "thp", "--numa=on"});
  EXPECT_THAT(bad.given.problems,
              testing::UnorderedElementsAre(AllOf(HasSubstr("--weights"), HasSubstr("hugepages")),
                                            AllOf(HasSubstr("--numa"), HasSubstr("auto"))));
}

TEST(PrintConfig, SaysWhereValuesComeFromAndHidesKeys) {
  const TempFile file("max-num-seqs: 8\n");
  const Outcome outcome =
      Give({"--config", file.path(), "--port", "1", "--api-key", "SECRET", "--hf-token", "SECRET"},
           {{"FATHOM_HOST", "::1"}, {"VLLM_LOG_STATS_INTERVAL", "2"}});
  EXPECT_THAT(outcome.config, HasSubstr("\nport: 1  # command line\n"));
  EXPECT_THAT(outcome.config, HasSubstr("\nmax-num-seqs: 8  # config file\n"));
  EXPECT_THAT(outcome.config, HasSubstr("\nhost: \"::1\"  # FATHOM_HOST\n"));
  EXPECT_THAT(outcome.config, HasSubstr("\nlog-stats-interval: 2  # VLLM_LOG_STATS_INTERVAL\n"));
  EXPECT_THAT(outcome.config, HasSubstr("\nenable-prefix-caching: true  # default\n"));
  EXPECT_THAT(outcome.config, HasSubstr("\n# seed: not set\n"));
  EXPECT_THAT(outcome.config, Not(HasSubstr("SECRET")));
  for (const std::string& warning : outcome.given.warnings) {
    EXPECT_THAT(warning, Not(HasSubstr("SECRET")));
  }
}

TEST(ApiKeyFile, HoldsAKeyALine) {
  const TempFile file("# team a\nfirst\n\n  second \r\n#third\n");
  const auto keys = ReadApiKeys(file.path());
  ASSERT_TRUE(keys.ok());
  EXPECT_THAT(*keys, ElementsAre("first", "second"));
}

TEST(ApiKeyFile, WithoutKeysItIsAProblem) {
  for (const char* text : {"", "# none\n", "\n\n"}) {
    const TempFile file(text);
    EXPECT_THAT(Give({"--api-key-file", file.path()}).given.problems,
                ElementsAre(HasSubstr("holds no key")));
  }
  EXPECT_THAT(Give({"--api-key-file", "/no/such"}).given.problems,
              ElementsAre(HasSubstr("/no/such")));
  EXPECT_THAT(Give({"--api-key", ""}).given.problems, ElementsAre(HasSubstr("empty")));
}

}  // namespace
}  // namespace fathom::cli
