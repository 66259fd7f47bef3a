// The official openai client on /v1/responses: create, stream, the tool loop, conversations by items.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import OpenAI from 'openai';
import { apiKey, expectIdle, serveNano, serveScenes, texts, weather } from './support.mjs';

const nano = await serveNano();
const scenes = await serveScenes();
after(() => Promise.all([nano.stop(), scenes.stop()]));

const options = { maxRetries: 0, timeout: 60_000 };
const real = new OpenAI({ baseURL: nano.baseURL, apiKey: 'none', ...options });
const replay = new OpenAI({ baseURL: scenes.baseURL, apiKey, ...options });
const { name, description, parameters } = weather;
const tools = [{ type: 'function', name, description, parameters, strict: false }];
const ask = (input, more = {}) => ({ model: 'fathom-nano', input, temperature: 0, ...more });
const kinds = (response) => response.output.map((item) => item.type);

// All events of a stream; items open and close one after the other, and deltas add up to what is closed.
async function events(stream) {
  const seen = [];
  let open = null;
  let text = '';
  for await (const event of stream) {
    assert.equal(event.sequence_number, seen.length);
    seen.push(event);
    if (event.type === 'response.output_item.added') {
      assert.equal(open, null);
      open = event.item;
      text = '';
    } else if (event.type.endsWith('.delta')) {
      assert.equal(event.item_id, open.id);
      text += event.delta;
    } else if (event.type.endsWith('_text.done')) {
      assert.equal(event.text, text);
    } else if (event.type === 'response.function_call_arguments.done') {
      assert.equal(event.arguments, text);
    } else if (event.type === 'response.output_item.done') {
      assert.equal(event.item.id, open.id);
      open = null;
    }
  }
  assert.deepEqual(seen.slice(0, 2).map((event) => event.type), ['response.created', 'response.in_progress']);
  assert.equal(open, null);
  return seen;
}

test('fathom-nano answers, with reasoning as an item', async () => {
  const response = await real.responses.create(ask('What is 17*19? Return only the final integer.',
    { reasoning: { effort: 'high' }, instructions: 'You are fathom-nano.' }));
  assert.equal(response.status, 'completed');
  assert.deepEqual(kinds(response), ['reasoning', 'message']);
  assert.match(response.output_text, /323/);
  assert.ok(response.output[0].content[0].text.length > 0);
  assert.ok(response.usage.output_tokens_details.reasoning_tokens > 0);
  assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
});

test('fathom-nano calls a tool, and its items go back as they came', async () => {
  const request = ask([{ role: 'user', content: weather.question }], { tools });
  const first = await real.responses.create(request);
  assert.deepEqual(kinds(first), ['reasoning', 'function_call']);
  const call = first.output[1];
  assert.equal(call.name, name);
  assert.deepEqual(JSON.parse(call.arguments), { location: 'Toronto' });

  const streamed = await real.responses.stream(request).finalResponse();
  assert.deepEqual(kinds(streamed), kinds(first));
  assert.equal(streamed.output[1].arguments, call.arguments);

  request.input.push(...first.output,
    { type: 'function_call_output', call_id: call.call_id, output: weather.result });
  const second = await real.responses.create(request);
  assert.equal(second.output_text, weather.answer);
  assert.ok(second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens);

  request.input.push(...second.output, { role: 'user', content: 'Hello!' });
  assert.ok((await real.responses.create(request)).output_text.length > 0);
});

test('reasoning, text and two calls, whole and as events', async () => {
  const request = ask('SCENE tools', { tools });
  const whole = await replay.responses.create(request);
  assert.deepEqual(kinds(whole), ['reasoning', 'message', 'function_call', 'function_call']);
  assert.equal(whole.output[0].content[0].text, texts.reasoning);
  assert.equal(whole.output_text, texts.moment);
  const cities = (response) => response.output.filter((item) => item.type === 'function_call')
    .map((item) => JSON.parse(item.arguments).location);
  assert.deepEqual(cities(whole), texts.cities);

  const seen = await events(await replay.responses.create({ ...request, stream: true }));
  const last = seen[seen.length - 1];
  assert.equal(last.type, 'response.completed');
  assert.deepEqual(kinds(last.response), kinds(whole));
  assert.deepEqual(cities(last.response), texts.cities);
  const pieces = seen.filter((event) => event.type === 'response.function_call_arguments.delta');
  assert.ok(pieces.length > 6, 'arguments come as the model writes them');

  const results = whole.output.filter((item) => item.type === 'function_call').map((item, i) =>
    ({ type: 'function_call_output', call_id: item.call_id, output: `${[4, 9][i]} degrees` }));
  const answer = await replay.responses.create(
    { ...request, input: [{ role: 'user', content: 'SCENE tools' }, ...whole.output, ...results] });
  assert.equal(answer.output_text, texts.final);
});

test('texts arrive to the letter', async () => {
  assert.equal((await replay.responses.create(ask('SCENE plain'))).output_text, texts.content);
  const helper = replay.responses.stream(ask('SCENE plain'));
  const response = await helper.finalResponse();
  assert.equal(response.output_text, texts.content);
  assert.equal(response.output[0].content[0].text, texts.reasoning);
  assert.equal(response.usage.input_tokens_details.cached_tokens, 3);
});

test('an answer that is cut is incomplete', async () => {
  const response = await replay.responses.create(ask('SCENE cut'));
  assert.equal(response.status, 'incomplete');
  assert.equal(response.incomplete_details.reason, 'max_output_tokens');
  const seen = await events(await replay.responses.create(ask('SCENE plain', { stream: true, max_output_tokens: 16 })));
  assert.equal(seen[seen.length - 1].type, 'response.incomplete');
});

test('an abort ends the request on the server', async () => {
  const stream = await replay.responses.create(ask('SCENE endless', { stream: true }));
  let seen = 0;
  for await (const event of stream) {
    assert.ok(event.type);
    if (++seen === 8) stream.controller.abort();
  }
  await expectIdle(scenes);
});

test('a failure in mid-stream ends with response.failed', async () => {
  const seen = await events(await replay.responses.create(ask('SCENE broken', { stream: true })));
  const last = seen[seen.length - 1];
  assert.equal(last.type, 'response.failed');
  assert.match(last.response.error.message, /engine failed/);
});

test('errors become the typed errors of the client', async () => {
  await assert.rejects(replay.responses.create(ask('x', { temperature: 3 })), (error) =>
    error instanceof OpenAI.BadRequestError && error.param === 'temperature');
  await assert.rejects(replay.responses.create(ask('x', { tools: [{ type: 'web_search' }] })), (error) =>
    error instanceof OpenAI.BadRequestError && /^tools/.test(error.param));
  await assert.rejects(replay.responses.create(ask('x', { previous_response_id: 'resp_x' })), OpenAI.NotFoundError);
  await assert.rejects(replay.responses.create({ ...ask('x'), model: 'no-such-model' }), (error) =>
    error instanceof OpenAI.NotFoundError && error.param === 'model');
  const stranger = new OpenAI({ baseURL: scenes.baseURL, apiKey: 'wrong', ...options });
  await assert.rejects(stranger.responses.create(ask('x')), OpenAI.AuthenticationError);
});
