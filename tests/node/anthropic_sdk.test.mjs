// The official Anthropic client on /v1/messages.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { apiKey, expectIdle, serveNano, serveScenes, texts, weather } from './support.mjs';

const nano = await serveNano();
const scenes = await serveScenes();
after(() => Promise.all([nano.stop(), scenes.stop()]));

const options = { maxRetries: 0, timeout: 60_000 };
const real = new Anthropic({ baseURL: nano.origin, apiKey: 'none', ...options });
const replay = new Anthropic({ baseURL: scenes.origin, apiKey, ...options });
const tools = [{ name: weather.name, description: weather.description, input_schema: weather.parameters }];
const thinking = { type: 'enabled', budget_tokens: 1024 };
const ask = (content, more = {}) => ({ model: 'fathom-nano', max_tokens: 2048, temperature: 0,
  messages: [{ role: 'user', content }], ...more });
const kinds = (message) => message.content.map((block) => block.type);

test('fathom-nano answers', async () => {
  const product = 'What is 17*19? Return only the final integer.';
  const plain = await real.messages.create(ask(product, { thinking: { type: 'disabled' } }));
  assert.deepEqual(kinds(plain), ['text']);
  assert.match(plain.content[0].text, /323/);
  assert.equal(plain.stop_reason, 'end_turn');
  assert.equal(plain.role, 'assistant');

  const thought = await real.messages.create(ask(product, { thinking, system: 'You are fathom-nano.' }));
  assert.deepEqual(kinds(thought), ['thinking', 'text']);
  assert.match(thought.content[1].text, /323/);
  assert.ok(thought.content[0].signature.length > 0);
});

test('fathom-nano calls a tool, and its thinking goes back with the result', async () => {
  const request = ask(weather.question, { tools, thinking });
  const first = await real.messages.create(request);
  assert.deepEqual(kinds(first), ['thinking', 'tool_use']);
  assert.equal(first.stop_reason, 'tool_use');
  const call = first.content[1];
  assert.equal(call.name, weather.name);
  assert.deepEqual(call.input, { location: 'Toronto' });

  const streamed = await real.messages.stream(request).finalMessage();
  assert.deepEqual(streamed.content.map(({ id, ...block }) => block), first.content.map(({ id, ...block }) => block));
  assert.equal(streamed.stop_reason, 'tool_use');

  request.messages.push({ role: 'assistant', content: first.content },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: weather.result }] });
  const second = await real.messages.create(request);
  assert.equal(second.content.at(-1).text, weather.answer);
  assert.equal(second.stop_reason, 'end_turn');
  // What the first answer left in the cache is counted apart from the new input.
  const { input_tokens: fresh, cache_read_input_tokens: cached } = second.usage;
  assert.ok(cached >= first.usage.input_tokens && fresh > 0, `${fresh} new, ${cached} cached`);
  const { input_tokens: counted } = await real.messages.countTokens(
    { model: request.model, messages: request.messages, tools, thinking });
  assert.equal(counted, fresh + cached);
});

test('reasoning, text and two calls in one answer, then their results', async () => {
  const request = ask('SCENE tools', { tools, thinking });
  const whole = await replay.messages.create(request);
  assert.deepEqual(kinds(whole), ['thinking', 'text', 'tool_use', 'tool_use']);
  assert.equal(whole.content[0].thinking, texts.reasoning);
  assert.equal(whole.content[1].text, texts.moment);
  assert.deepEqual(whole.content.slice(2).map((call) => call.input.location), texts.cities);

  const stream = replay.messages.stream(request);
  const pieces = [];
  stream.on('inputJson', (piece) => pieces.push(piece));
  const streamed = await stream.finalMessage();
  assert.deepEqual(kinds(streamed), kinds(whole));
  assert.equal(streamed.content[0].thinking, texts.reasoning);
  assert.ok(streamed.content[0].signature.length > 0);
  assert.deepEqual(streamed.content.slice(2).map((call) => call.input.location), texts.cities);
  assert.ok(pieces.length > 6, 'input comes as the model writes it');

  request.messages.push({ role: 'assistant', content: whole.content },
    { role: 'user', content: whole.content.slice(2).map((call, i) =>
      ({ type: 'tool_result', tool_use_id: call.id, content: [{ type: 'text', text: `${[4, 9][i]} degrees` }] })) });
  const last = await replay.messages.create(request);
  assert.equal(last.content.at(-1).text, texts.final);

  const single = await replay.messages.create(
    ask('SCENE tools', { tools, tool_choice: { type: 'auto', disable_parallel_tool_use: true } }));
  assert.equal(single.content.filter((block) => block.type === 'tool_use').length, 1);
});

test('the events of a stream are in order', async () => {
  const types = [];
  let message;
  for await (const event of await replay.messages.create(ask('SCENE tools', { tools, thinking, stream: true }))) {
    if (event.type === 'ping') continue;
    if (event.type === 'message_start') message = event.message;
    if (types.at(-1) !== event.type) types.push(event.type);
  }
  const block = ['content_block_start', 'content_block_delta', 'content_block_stop'];
  assert.deepEqual(types, ['message_start', ...block, ...block, ...block, ...block, 'message_delta', 'message_stop']);
  assert.ok(message.usage.input_tokens > 0, 'usage of the prompt is there from the start');
});

test('texts arrive to the letter', async () => {
  const plain = await replay.messages.stream(ask('SCENE plain', { thinking })).finalMessage();
  assert.equal(plain.content[0].thinking, texts.reasoning);
  assert.equal(plain.content[1].text, texts.content);
  assert.equal(plain.usage.cache_read_input_tokens, 3);
});

test('stop reasons', async () => {
  const cut = await replay.messages.create(ask('SCENE cut', { thinking: { type: 'disabled' } }));
  assert.equal(cut.stop_reason, 'max_tokens');
  const stopped = await replay.messages.create(
    ask('SCENE count', { stop_sequences: ['three'], thinking: { type: 'disabled' } }));
  assert.equal(stopped.stop_reason, 'stop_sequence');
  assert.equal(stopped.stop_sequence, 'three');
  assert.equal(stopped.content[0].text, 'one two ');
});

test('tokens are passed on when they come, and an abort ends the request on the server', async () => {
  const stream = replay.messages.stream(ask('SCENE endless', { thinking: { type: 'disabled' } }));
  await new Promise((resolve) => stream.once('text', resolve));
  stream.abort();
  await assert.rejects(stream.done(), Anthropic.APIUserAbortError);
  await expectIdle(scenes);
});

test('errors become the typed errors of the client', async () => {
  await assert.rejects(replay.messages.create(ask('x', { temperature: 3 })), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.error.error.type, 'invalid_request_error');
    assert.match(error.message, /temperature/);
    return true;
  });
  await assert.rejects(replay.messages.create({ ...ask('x'), model: 'no-such-model' }), Anthropic.NotFoundError);
  const stranger = new Anthropic({ baseURL: scenes.origin, apiKey: 'wrong', ...options });
  await assert.rejects(stranger.messages.create(ask('x')), (error) =>
    error instanceof Anthropic.AuthenticationError && error.error.error.type === 'authentication_error');
  await assert.rejects(replay.messages.create(ask('SCENE full')), (error) =>
    error.status === 529 && error.error.error.type === 'overloaded_error');
  await assert.rejects(replay.messages.stream(ask('SCENE broken')).finalMessage(), /engine failed/);
});
