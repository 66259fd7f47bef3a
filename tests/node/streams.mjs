// Hundreds of streams at once, a thousand in a full run, against a running `fathom serve`: every one gets its whole answer, equal
// prompts get equal answers, nobody is starved, and nothing is left afterwards.
//
// FATHOM_BASE_URL, FATHOM_SERVER_PID  as with_server.sh sets them; the server needs
//                                     --enable-dev-endpoints
// FATHOM_STREAMS         how many at once (default 200; the server takes 1024 connections)
// FATHOM_STREAM_TOKENS   tokens of each answer (default 16)
// FATHOM_STREAM_SLOTS    the server's --max-num-seqs (default 32)
import assert from 'node:assert/strict';
import http from 'node:http';
import { test } from 'node:test';

import { ServerState, until } from './server_state.mjs';

const baseURL = process.env.FATHOM_BASE_URL;
assert.ok(baseURL, 'FATHOM_BASE_URL must name the server to test');
const pid = process.env.FATHOM_SERVER_PID;
assert.ok(pid, 'FATHOM_SERVER_PID must name its process');
const numStreams = Number(process.env.FATHOM_STREAMS ?? 200);
const numTokens = Number(process.env.FATHOM_STREAM_TOKENS ?? 16);
const numSlots = Number(process.env.FATHOM_STREAM_SLOTS ?? 32);
const numPrompts = 20;
// One user asks for half of the streams, before everyone else; ten others share the rest.
const numLightUsers = 10;
const numHeavy = numStreams / 2;
const isHeavy = (index) => index < numHeavy;
const maxGrowthMiB = 4;

assert.ok(numHeavy > numSlots, 'with so few streams nobody has to wait for a turn');
const state = new ServerState(baseURL.replace(/\/v1$/, ''), pid);
const { hostname, port } = new URL(baseURL);

function bodyOf(index) {
  return {
    messages: [{ role: 'user', content: `Tell me about number ${index % numPrompts}.` }],
    user: isHeavy(index) ? 'heavy' : `light ${index % numLightUsers}`,
    max_tokens: numTokens,
    ignore_eos: true,
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
    chat_template_kwargs: { thinking: false },
  };
}

// Resolves to the answer and its times in seconds since `start`.
function stream(index, start) {
  return new Promise((resolve, reject) => {
    const body = JSON.stringify(bodyOf(index));
    const now = () => (performance.now() - start) / 1000;
    const result = { index, text: '', first: NaN, end: NaN, longestGap: 0 };
    const request = http.request(
      {
        hostname,
        port,
        path: '/v1/chat/completions',
        method: 'POST',
        agent: false,
        headers: { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) },
      },
      (response) => {
        let rest = '';
        let last = NaN;
        let isDone = false;
        response.setEncoding('utf8');
        response.on('error', reject);
        response.on('data', (part) => {
          const lines = (rest + part).split('\n');
          rest = lines.pop();
          for (const line of lines) {
            if (line === 'data: [DONE]') isDone = true;
            if (!line.startsWith('data: {')) continue;
            const event = JSON.parse(line.slice(6));
            if (event.error) return reject(new Error(`stream ${index}: ${line}`));
            const choice = event.choices[0];
            if (event.usage) result.usage = event.usage;
            if (!choice) continue;
            result.text += choice.delta.content ?? '';
            result.finish = choice.finish_reason ?? result.finish;
            const time = now();
            if (Number.isNaN(last)) result.first = time;
            else result.longestGap = Math.max(result.longestGap, time - last);
            last = time;
          }
          return undefined;
        });
        response.on('end', () => {
          result.end = now();
          if (response.statusCode === 200 && isDone) resolve(result);
          else
            reject(
              new Error(
                `stream ${index}: status ${response.statusCode}, ended ${isDone}: ${rest.slice(0, 300)}`,
              ),
            );
        });
      },
    );
    request.on('error', (error) => reject(new Error(`stream ${index}: ${error.message}`)));
    request.end(body);
  });
}

const sorted = (values) => [...values].sort((a, b) => a - b);
const quantile = (values, q) => sorted(values)[Math.min(values.length - 1, Math.floor(q * values.length))];
const rounded = (value) => Math.round(value * 100) / 100;

// A request whose answers take all slots until it is destroyed.
function occupySlots() {
  const body = JSON.stringify({
    messages: [{ role: 'user', content: 'Once upon a time' }],
    user: 'occupier',
    n: numSlots,
    max_tokens: 3000,
    ignore_eos: true,
    stream: true,
  });
  const request = http.request({
    hostname,
    port,
    path: '/v1/chat/completions',
    method: 'POST',
    agent: false,
    headers: { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) },
  });
  request.on('error', () => {}); // it is destroyed
  request.on('response', (response) => response.on('error', () => {}).resume());
  request.end(body);
  return request;
}

async function round() {
  // All requests wait before the first one runs, so that turns do not hang on when each arrived.
  const occupier = occupySlots();
  await until('all slots taken', async () => (await state.metric('vllm:num_requests_running')) === numSlots);
  const start = performance.now();
  const all = Promise.all(Array.from({ length: numStreams }, (_, index) => stream(index, start)));
  all.catch(() => {}); // told below
  await Promise.race([
    all,
    until('all streams wait', async () => (await state.metric('vllm:num_requests_waiting')) === numStreams),
  ]);
  occupier.destroy();
  const streams = await all;
  const answers = new Map();
  for (const { index, text, finish, usage } of streams) {
    assert.equal(finish, 'length', `stream ${index}`);
    assert.equal(usage?.completion_tokens, numTokens, `stream ${index}`);
    const prompt = index % numPrompts;
    assert.equal(text, answers.get(prompt) ?? text, `stream ${index}: equal prompts, other answers`);
    answers.set(prompt, text);
  }
  const first = streams.map((s) => s.first);
  const of = (heavy) => streams.filter((s) => isHeavy(s.index) === heavy).map((s) => s.first);
  const seconds = Math.max(...streams.map((s) => s.end));
  checkFairness(streams);
  return {
    seconds: rounded(seconds),
    tokens_per_second: Math.round((numStreams * numTokens) / seconds),
    first_token: [0, 0.5, 0.9, 1].map((q) => rounded(quantile(first, q))),
    first_token_heavy: [0.5, 1].map((q) => rounded(quantile(of(true), q))),
    first_token_light: [0.5, 1].map((q) => rounded(quantile(of(false), q))),
    duration: [0.5, 1].map((q) =>
      rounded(
        quantile(
          streams.map((s) => s.end - s.first),
          q,
        ),
      ),
    ),
    longest_gap: [0.5, 1].map((q) =>
      rounded(
        quantile(
          streams.map((s) => s.longestGap),
          q,
        ),
      ),
    ),
  };
}

// Clients take turns, so half of the load in one client's hands must not make the others wait behind
// it: it may have one answer begun before their last one for every turn of theirs, and those that
// begin together with their last one, in the other slots.
//
// Whoever runs gets on like all others who run: from first token to last, and between two tokens.
function checkFairness(streams) {
  const lastLight = Math.max(...streams.filter((s) => !isHeavy(s.index)).map((s) => s.first));
  const before = streams.filter((s) => isHeavy(s.index) && s.first < lastLight).length;
  const turns = Math.ceil((numStreams - numHeavy) / numLightUsers);
  assert.ok(
    before <= numSlots + turns,
    `${before} of ${numHeavy} answers of one user began before others' last`,
  );
  for (const measure of [(s) => s.end - s.first, (s) => s.longestGap]) {
    const values = streams.map(measure);
    const most = Math.max(...values);
    assert.ok(
      most <= 4 * quantile(values, 0.5) + 1,
      `${measure}: ${most} s, median ${quantile(values, 0.5)} s`,
    );
  }
}

test('many streams at once', { timeout: 1_200_000 }, async () => {
  await until('nothing running', () => state.isIdle());
  const files = state.numFiles();
  const slabs = await state.metric('fathom:slab_free');
  assert.ok(slabs > 0);
  const memory = [state.rssMiB()];
  const rounds = [];
  for (let i = 0; i < 2; ++i) {
    rounds.push(await round());
    await until('nothing running', () => state.isIdle());
    await until('connections and files as before', () => state.numFiles() <= files);
    await state.forgetPrefixes();
    await until('every page free', async () => (await state.metric('fathom:slab_free')) === slabs);
    memory.push(state.rssMiB());
  }
  console.log(
    JSON.stringify({
      streams: numStreams,
      tokens: numTokens,
      rounds,
      preemptions: await state.metric('vllm:num_preemptions_total'),
      rss_mib: memory.map(rounded),
      files,
    }),
  );
  const growth = memory[2] - memory[1];
  assert.ok(
    growth <= maxGrowthMiB,
    `the second round left ${growth} MiB more, at most ${maxGrowthMiB} are expected`,
  );
});
