// Random clients against a running `fathom serve`: streams and plain answers, conversations, clients
// that leave in the middle, bad requests; then nothing may be left in use.
//
// FATHOM_BASE_URL      as for the client tests; the server needs --enable-dev-endpoints
// FATHOM_SOAK_SECONDS  how long (default 8)
// FATHOM_SOAK_CLIENTS  how many at a time (default 24)
// FATHOM_SOAK_SEED     of the traffic (default 1)
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Random } from './random.mjs';
import { ServerState, until } from './server_state.mjs';

const baseURL = process.env.FATHOM_BASE_URL;
assert.ok(baseURL, 'FATHOM_BASE_URL must name the server to test');
const root = baseURL.replace(/\/v1$/, '');
const seconds = Number(process.env.FATHOM_SOAK_SECONDS ?? 8);
const numClients = Number(process.env.FATHOM_SOAK_CLIENTS ?? 24);

const generator = new Random(Number(process.env.FATHOM_SOAK_SEED ?? 1));
const random = () => generator.next();
const below = (n) => generator.below(n);

const state = new ServerState(root);
const metric = (name) => state.metric(name);

// A few prompts with common beginnings, so that the prefix cache has work, of many lengths.
function prompt() {
  const topic = below(3);
  const words = ['the', 'river', 'of', 'small', 'numbers', 'and', 'stones', 'that', 'count'];
  const length = [3, 20, 20, 120, 300, 700][below(6)];
  let text = `Topic ${topic}.`;
  for (let i = 0; i < length; ++i) text += ` ${words[(i * 7 + topic) % words.length]}`;
  return `${text} Question ${below(2)}?`;
}

// Greedy answers by request: whoever asks the same gets the same, whatever else runs.
const answers = new Map();
const counts = { done: 0, left: 0, refused: 0, bad: 0, repeated: 0, turns: 0 };

function remember(key, text) {
  if (answers.has(key)) {
    assert.equal(text, answers.get(key), 'the same request got another answer');
    counts.repeated += 1;
  }
  answers.set(key, text);
}

async function ask(body, leaveAfter) {
  const controller = new AbortController();
  const response = await fetch(`${baseURL}/chat/completions`, {
    method: 'POST', signal: controller.signal, headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body) });
  if (response.status === 503) {
    assert.ok(response.headers.get('retry-after'));
    await response.text();
    counts.refused += 1;
    return null;
  }
  assert.equal(response.status, 200, await response.clone().text());
  if (!body.stream) return (await response.json()).choices[0].message.content;
  let text = '';
  let rest = '';
  let events = 0;
  const decoder = new TextDecoder();
  for await (const part of response.body) {
    rest += decoder.decode(part, { stream: true });
    const lines = rest.split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: {')) continue;
      const event = JSON.parse(line.slice(6));
      assert.equal(event.error, undefined, line);
      text += event.choices[0]?.delta?.content ?? '';
      if (++events === leaveAfter) {
        controller.abort();
        counts.left += 1;
        return null;
      }
    }
  }
  return text;
}

async function badRequest() {
  const bodies = ['{', '{"messages": 7}', '{"messages": [], "temperature": "hot"}',
    JSON.stringify({ messages: [{ role: 'user', content: 'x' }], max_tokens: -1 })];
  const response = await fetch(`${baseURL}/chat/completions`, {
    method: 'POST', headers: { 'Content-Type': 'application/json' }, body: bodies[below(4)] });
  assert.equal(response.status, 400);
  await response.text();
  counts.bad += 1;
}

// A slow machine goes on until it has seen everything once.
const seenAll = () => counts.done > 0 && counts.left > 0 && counts.bad > 0 && counts.repeated > 0;

async function client(end) {
  while (Date.now() < end || (!seenAll() && Date.now() < end + 100_000)) {
    if (random() < 0.05) {
      await badRequest();
      continue;
    }
    const messages = [{ role: 'user', content: prompt() }];
    const turns = 1 + below(3);
    for (let turn = 0; turn < turns && (turn === 0 || Date.now() < end); ++turn) {
      const body = { messages, max_tokens: [1, 8, 24, 80][below(4)], stream: random() < 0.7, temperature: 0,
        seed: 1, chat_template_kwargs: { thinking: false } };
      // Some grow over a window's pages, so that memory runs out under them.
      if (random() < 0.2) Object.assign(body, { max_tokens: 250, ignore_eos: true });
      if (random() < 0.2) body.stop = ['the', 'ing'];
      if (random() < 0.2) body.cache_salt = `salt ${below(2)}`;
      const leaveAfter = body.stream && random() < 0.3 ? 1 + below(30) : 0;
      let text = null;
      try {
        text = await ask(body, leaveAfter);
      } catch (error) {
        if (error.name !== 'AbortError') throw error;
        counts.left += 1;
      }
      if (text === null) break;
      counts.done += 1;
      counts.turns += turn > 0 ? 1 : 0;
      const { stream, cache_salt: salt, ...key } = body;
      remember(JSON.stringify(key), text);
      messages.push({ role: 'assistant', content: text },
        { role: 'user', content: `Go on ${below(2)}.` });
    }
  }
}

test('random clients leave nothing behind', { timeout: (seconds + 200) * 1000 }, async () => {
  const slabs = await metric('fathom:slab_free');
  assert.ok(slabs > 0);
  const end = Date.now() + seconds * 1000;
  await Promise.all(Array.from({ length: numClients }, () => client(end)));
  await until('nothing running', () => state.isIdle());
  const report = { ...counts, hits: await metric('vllm:prefix_cache_hits_total'),
    queries: await metric('vllm:prefix_cache_queries_total'),
    preemptions: await metric('vllm:num_preemptions_total') };
  console.log(JSON.stringify(report));
  assert.ok(seenAll(), 'the traffic had everything in it');
  await state.forgetPrefixes();
  await until('every page free', async () => (await metric('fathom:slab_free')) === slabs);
});
