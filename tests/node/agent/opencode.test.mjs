// The coding agent opencode, headless, against the replay model and against fathom-nano (docs/clients.md).
//
// It gets a home and a project of its own in a temporary folder, and nothing but loopback: its documented switches turn
// off what it would fetch, and a proxy that only counts shows that it asked for nothing else.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { serve, serveNano, weather } from '../support.mjs';

const program = fileURLToPath(new URL('node_modules/opencode-linux-x64-baseline/bin/opencode', import.meta.url));
const missing = !existsSync(program) && 'no opencode here: tests/node/install.sh agent (Linux on x64 only)';
if (missing && process.env.CI === 'true' && process.arch === 'x64') throw new Error(missing);

const folder = mkdtempSync(join(tmpdir(), 'fathom-agent-'));
const project = join(folder, 'project');
let strangers = 0;
const proxy = net.createServer((socket) => {
  strangers++;
  socket.destroy();
});
before(() => new Promise((resolve) => proxy.listen(0, '127.0.0.1', resolve)));
after(() => {
  proxy.close();
  rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
});

function makeProject(server, agent, files) {
  rmSync(project, { recursive: true, force: true });
  const config = {
    model: 'fathom/fathom-nano',
    small_model: 'fathom/fathom-nano',
    autoupdate: false,
    share: 'disabled',
    snapshot: false,
    permission: { edit: 'allow', bash: 'allow' },
    provider: {
      fathom: {
        npm: '@ai-sdk/openai-compatible',
        options: { baseURL: server.baseURL, apiKey: 'none' },
        models: {
          'fathom-nano': { tool_call: true, reasoning: true, temperature: true,
            limit: { context: 32768, output: 1024 } },
        },
      },
    },
    agent,
  };
  for (const [path, text] of Object.entries({ 'opencode.json': JSON.stringify(config), ...files })) {
    mkdirSync(join(project, path, '..'), { recursive: true });
    writeFileSync(join(project, path), text);
  }
}

// The events of `opencode run --format json`; the agent is ended after 240 s (it takes some 10).
async function run(agent, message) {
  const proxyURL = `http://127.0.0.1:${proxy.address().port}`;
  const env = { PATH: process.env.PATH, HOME: folder, NO_PROXY: '127.0.0.1,localhost', HTTP_PROXY: proxyURL,
    HTTPS_PROXY: proxyURL, OPENCODE_DISABLE_AUTOUPDATE: '1', OPENCODE_DISABLE_MODELS_FETCH: '1',
    OPENCODE_DISABLE_LSP_DOWNLOAD: '1', OPENCODE_DISABLE_DEFAULT_PLUGINS: '1',
    // It installs packages for plugins in the background; npm's own switch keeps that off the network.
    npm_config_offline: 'true' };
  const args = ['run', '--agent', agent, '--title', 'a title', '--format', 'json', '--print-logs', message];
  const child = spawn(program, args, { cwd: project, env, stdio: ['ignore', 'pipe', 'pipe'] });
  const timer = setTimeout(() => child.kill('SIGKILL'), 240_000);
  const out = [[], []];
  child.stdout.on('data', (data) => out[0].push(data));
  child.stderr.on('data', (data) => out[1].push(data));
  const status = await new Promise((resolve) => child.on('close', resolve));
  clearTimeout(timer);
  const [said, log] = out.map((pieces) => Buffer.concat(pieces).toString());
  assert.equal(status, 0, log.slice(-4000));
  assert.equal(strangers, 0, 'it asked for something beyond loopback');
  const events = said.split('\n').filter(Boolean).map((line) => JSON.parse(line));
  const errors = events.filter((event) => event.type === 'error');
  assert.deepEqual(errors, [], log.slice(-4000));
  return {
    tools: events.filter((event) => event.type === 'tool_use').map((event) => event.part),
    text: events.filter((event) => event.type === 'text').map((event) => event.part.text).join('\n'),
    steps: events.filter((event) => event.type === 'step_finish').map((event) => event.part),
  };
}

test('opencode works through a scripted task: writes a file, reads and lists, answers', { skip: missing }, async () => {
  const notes = join(project, 'notes.txt');
  const content = 'Grüße, 世界\n\t"quoted" \\ 🌍\n';
  const task = { contains: ['You are opencode', '"name": "write"', '"name": "bash"', 'Write notes.txt.'] };
  const server = await serve({ answers: [
    { when: { ...task, lacks: ['<tool_result>'] }, reasoning: 'A file is asked for.', content: 'I write it.',
      tool_calls: [{ name: 'write', arguments: { filePath: notes, content } }] },
    { when: { ...task, contains: [...task.contains, 'A file is asked for.', '<tool_result>'], lacks: ['two calls'] },
      reasoning: 'Now two calls.', tool_calls: [{ name: 'read', arguments: { filePath: notes } },
        { name: 'bash', arguments: { command: 'cat notes.txt | wc -l', description: 'Counts lines' } }] },
    { when: { ...task, contains: [...task.contains, 'two calls', '1: Grüße'] }, reasoning: 'Done.',
      content: 'notes.txt has 2 lines.' },
  ] });
  try {
    makeProject(server, {}, {});
    const { tools, text, steps } = await run('build', 'Write notes.txt.');
    assert.equal(readFileSync(notes, 'utf8'), content);
    // The two of the second turn run side by side and end in any order.
    assert.deepEqual(tools.map((part) => `${part.tool} ${part.state.status}`).sort(),
      ['bash completed', 'read completed', 'write completed']);
    assert.equal(tools.find((part) => part.tool === 'bash').state.output.trim(), '2');
    assert.match(text, /I write it\.[^]*notes\.txt has 2 lines\./);
    assert.deepEqual(steps.map((step) => step.reason), ['tool-calls', 'tool-calls', 'stop']);
    assert.ok(steps.every((step) => step.tokens.reasoning > 0));
    const { input, cache } = steps[0].tokens;
    assert.ok(input + cache.read > 10_000, `the whole prompt of opencode, ${input} + ${cache.read} tokens`);
  } finally {
    await server.stop();
  }
});

test('opencode with fathom-nano', { skip: missing }, async (t) => {
  const server = await serveNano();
  try {
    await t.test('its own prompt and file tools fit and get an answer', async () => {
      const off = Object.fromEntries(['bash', 'task', 'todowrite', 'webfetch', 'skill'].map((name) => [name, false]));
      makeProject(server, { build: { tools: off, steps: 2, temperature: 0 } }, {});
      const { tools, text, steps } = await run('build', 'What is 17*19? Return only the final integer.');
      // What a model of this size makes of such a prompt is its own affair; that it is asked and answers is not.
      assert.ok(text.length > 0 || tools.length > 0);
      const { input, cache, output } = steps[0].tokens;
      assert.ok(input + cache.read > 4000 && output > 0, `${input} + ${cache.read} in, ${output} out`);
    });
    await t.test('it calls a tool of the project and uses the result', async () => {
      const agent = { prompt: 'You are fathom-nano.', temperature: 0, steps: 4, mode: 'primary',
        tools: { '*': false, [weather.name]: true } };
      makeProject(server, { weather: agent }, { 'weather.json': weather.result,
        [`.opencode/tool/${weather.name}.js`]: `import { readFileSync } from 'node:fs';
export default {
  description: '${weather.description}',
  args: {},
  execute: async (args, context) => readFileSync(context.directory + '/weather.json', 'utf8'),
};
` });
      const { tools, text } = await run('weather', weather.question);
      assert.deepEqual(tools.map((part) => [part.tool, part.state.status, part.state.input]),
        [[weather.name, 'completed', { location: 'Toronto' }]]);
      assert.equal(text, weather.answer);
    });
  } finally {
    await server.stop();
  }
});
