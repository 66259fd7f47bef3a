// Good requests whose answers never change: greedy or seeded, whole or streamed, over three APIs.
import assert from 'node:assert/strict';

const chat = (content, more) => ({ messages: [{ role: 'user', content }], max_tokens: 24, ...more });
const requests = [
  ['greedy, whole', '/v1/chat/completions', chat('What is 7 + 5?', { temperature: 0, logprobs: true, top_logprobs: 5 })],
  ['greedy, streamed', '/v1/chat/completions', chat('Tell me a story about a river.', { temperature: 0, stream: true,
    chat_template_kwargs: { thinking: false }, ignore_eos: true })],
  ['seeded, whole', '/v1/chat/completions', chat('Name a colour.', { temperature: 1, seed: 42, n: 2, logprobs: true, top_logprobs: 3 })],
  ['seeded, streamed', '/v1/chat/completions', chat('Invent a word.', { temperature: 1.5, seed: 7, stream: true,
    ignore_eos: true, logprobs: true, top_logprobs: 2, stream_options: { include_usage: true } })],
  ['completion with the prompt', '/v1/completions', { prompt: 'The river', max_tokens: 16, temperature: 0, echo: true, logprobs: 3 }],
  ['Anthropic, streamed', '/v1/messages', { model: 'fathom-nano', max_tokens: 16, temperature: 0, stream: true,
    messages: [{ role: 'user', content: 'What is 3 + 4?' }] }],
  ['tokens', '/tokenize', { prompt: 'Hello, wörld! 你好 123456', return_token_strs: true }],
];

// What differs from one time to the next by its nature: ids, the clock, and how much of the prompt was
// found in the cache.
const varying = new Set(['id', 'created', 'created_at', 'prompt_tokens_details', 'prompt_cache_hit_tokens',
  'prompt_cache_miss_tokens', 'cache_read_input_tokens', 'cache_creation_input_tokens', 'input_tokens', 'signature']);
const lasting = (key, value) => (varying.has(key) ? undefined : value);

// The bytes of all events of a stream; how many of them came together says nothing.
function canonical(text) {
  if (text.startsWith('{')) return JSON.stringify(JSON.parse(text, lasting));
  return text.split('\n').filter((line) => line.startsWith('data:') || line.startsWith('event:'))
    .filter((line) => !line.includes('"ping"') && line !== 'event: ping')
    .map((line) => (line.startsWith('data: {') ? JSON.stringify(JSON.parse(line.slice(6), lasting)) : line))
    .join('\n');
}

export class GoodClient {
  #client;
  #answers = new Map();
  constructor(client) { this.#client = client; }

  async #ask(path, body) {
    const answer = await this.#client.request({ path, body: JSON.stringify(body) });
    assert.equal(answer.status, 200, answer.text);
    assert.doesNotMatch(answer.text, /"error"/);
    return canonical(answer.text);
  }

  // Before the abuse.
  async record() {
    for (const [name, path, body] of requests) this.#answers.set(name, await this.#ask(path, body));
  }

  // Two clients ask everything again and again, each to the end of its list. Resolves to how many
  // answers were compared.
  async repeatUntil(isOver) {
    let compared = 0;
    const repeat = async () => {
      do {
        for (const [name, path, body] of requests) {
          assert.equal(await this.#ask(path, body), this.#answers.get(name), `a good client's answer changed: ${name}`);
          ++compared;
        }
      } while (!isOver());
    };
    await Promise.all([repeat(), repeat()]);
    return compared;
  }
}
