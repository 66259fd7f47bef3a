// Speed of llama.cpp on a GGUF file, by node-llama-cpp's prebuilt library: one prompt, then tokens
// behind it.
//
//   node llama_bench.mjs MODEL.gguf PROMPT_TOKENS GENERATED_TOKENS THREADS
//
// Prompts are token ids drawn at random, below the environment's VOCAB (16000). The last line of
// the output is JSON. Threads are set for both phases; a batch is 512 tokens, as fathom's chunks.
import {getLlama} from "node-llama-cpp";

const usage = "usage: node llama_bench.mjs MODEL.gguf PROMPT_TOKENS GENERATED_TOKENS THREADS";
const [path, ...numbers] = process.argv.slice(2);
const [promptTokens, generatedTokens, threads] = numbers.map(Number);
if (numbers.length !== 3 || !(promptTokens >= 2) || !(generatedTokens >= 1) || !(threads >= 1)) {
  console.error(usage);
  process.exit(2);
}
const vocab = Number(process.env.VOCAB || 16000);
const kBatch = 512;

const llama = await getLlama({gpu: false, build: "never", logLevel: process.env.LOG || "warn", maxThreads: threads});
const model = await llama.loadModel({modelPath: path, useMmap: true, checkTensors: false});
const context = await model.createContext({
  contextSize: Math.max(1024, promptTokens + generatedTokens + 64), threads, batchSize: kBatch, sequences: 1,
});
const sequence = context.getSequence();

// The same ids in every run; 0 and 1 are control tokens.
let state = 12345;
const random = () => (state = (state * 1103515245 + 12345) & 0x7fffffff);
const tokens = [0];
while (tokens.length < promptTokens) tokens.push(2 + random() % (vocab - 2));

// Once without measuring: pages of the file that this process sees for the first time.
await sequence.evaluateWithoutGeneratingNewTokens(tokens.slice(0, Math.min(promptTokens, kBatch)));
await sequence.clearHistory();

const prefillBegin = performance.now();
await sequence.evaluateWithoutGeneratingNewTokens(tokens.slice(0, -1));
const prefillSeconds = (performance.now() - prefillBegin) / 1000;

// The prompt's last token gives the first new one, which is not measured; then one at a time.
let generated = -1;
let decodeBegin = 0;
for await (const _ of sequence.evaluate([tokens.at(-1)], {temperature: 0, yieldEogToken: true})) {
  if (++generated === 0) decodeBegin = performance.now();
  if (generated === generatedTokens) break;
}
const decodeSeconds = (performance.now() - decodeBegin) / 1000;

console.log(JSON.stringify({
  prompt_tokens: promptTokens,
  prefill_tokens_per_s: (promptTokens - 1) / prefillSeconds,
  generated_tokens: generated,
  decode_tokens_per_s: generated / decodeSeconds,
}));
await context.dispose();
process.exit(0);
