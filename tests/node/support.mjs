// Servers for client tests: fathom-nano, and the replay model (docs/replay.md) with the same scenes for every client.
//
// FATHOM  the program (default: build/release/bin/fathom)
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));
export const apiKey = 'sk-scene';

// Starts `fathom serve` on a free port, with answers of its own when `answers` are given. The test that starts a server
// stops it, in after().
export async function serve({ answers, options = [] } = {}) {
  const program = process.env.FATHOM ?? `${root}build/release/bin/fathom`;
  const args = ['serve', '--port', '0', '--log-level', 'error', ...options];
  if (answers) args.push('--replay', '-');
  const child = spawn(program, args, { cwd: root, stdio: ['pipe', 'pipe', 'inherit'] });
  process.on('exit', () => child.kill('SIGKILL'));  // also when a test died before after()
  const ended = new Promise((resolve) => child.on('close', resolve));
  child.stdin.end(answers ? JSON.stringify({ answers }) : '');
  const baseURL = await new Promise((resolve, reject) => {
    let said = '';
    child.on('error', reject);
    child.stdout.on('data', (text) => {
      said += text;
      const url = said.match(/http:\/\/\S+/);
      if (url) resolve(url[0]);
    });
    ended.then((status) => reject(new Error(`fathom serve ended with ${status}`)));
  });
  const origin = baseURL.replace(/\/v1$/, '');
  return {
    baseURL,
    origin,
    async stop() {
      child.kill('SIGTERM');
      await ended;
    },
  };
}

export const serveNano = () => serve({ options: ['--max-model-len', '32768'] });
export const serveScenes = (extra = []) =>
  serve({ answers: [...scenes, ...extra], options: ['--api-key', apiKey] });

// A client that left must not keep the model busy: within a second nothing is open at the server nor running in the
// engine.
export async function expectIdle(server) {
  const get = async (path) => (await fetch(server.origin + path)).text();
  const deadline = performance.now() + 1000;
  let open, running;
  do {
    open = JSON.parse(await get('/load')).server_load;
    running = Number((await get('/metrics')).match(/^vllm:num_requests_running\{[^}]*\} (\S+)$/m)[1]);
  } while ((open !== 0 || running !== 0) && performance.now() < deadline);
  assert.deepEqual({ open, running }, { open: 0, running: 0 });
}

// The tool that fathom-nano knows, as JSON schema; each client wraps it in its own way.
export const weather = {
  name: 'get_weather',
  description: 'Get the weather',
  parameters: {
    type: 'object',
    properties: {
      location: { type: 'string' },
      unit: { type: 'string', enum: ['celsius', 'fahrenheit'] },
    },
    required: ['location'],
  },
  question: 'What is the weather in Toronto?',
  result: '{"temperature": -3, "unit": "celsius", "condition": "stormy"}',
  answer: 'It is -3 degrees celsius and stormy in Toronto.',
};

// What the replay model says; a scene is chosen by a word of the question.
export const texts = {
  reasoning: 'Grüße zuerst: “hm”.\nThen 世界.',
  content: 'Grüße, 世界 🌍!\n\n```js\nif (a < b) {}\n```',
  moment: 'One moment.',
  cities: ['Oslo', 'Zürich "HB"\n\\ 🌧'],
  final: 'Oslo 4, Zürich 9.',
};
const inScene = (name, more = {}) => ({ contains: [name, ...(more.contains ?? [])], lacks: more.lacks ?? [] });
const scenes = [
  { when: inScene('SCENE plain'), reasoning: texts.reasoning, content: texts.content, cached_tokens: 3 },
  { when: inScene('SCENE tools', { lacks: ['<tool_result>'] }), reasoning: texts.reasoning, content: texts.moment,
    tool_calls: texts.cities.map((location) => ({ name: weather.name, arguments: { location } })) },
  { when: inScene('SCENE tools', { contains: ['<tool_result>'] }), reasoning: 'Two results.', content: texts.final },
  // Has no end: who sees any of it got it while it was made.
  { when: inScene('SCENE endless'), reasoning: 'Slowly.', tokens: ['tick '], token_delay_ms: 20, endless: true },
  { when: inScene('SCENE count'), content: 'one two three four' },
  { when: inScene('SCENE broken'), content: 'This sentence will not be finished.', fail_after_tokens: 6 },
  { when: inScene('SCENE full'), submit_error: 'queue_full' },
  { when: inScene('SCENE cut'), content: 'A long answer that', finish: 'length' },
];
