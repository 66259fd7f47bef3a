// The official openai client against `fathom serve` with the bundled model: chat, completions, models.
//
// FATHOM_BASE_URL  a server that runs already, for example http://127.0.0.1:8000/v1 (default: one is started)
// FATHOM_MODEL     a served name (default: the first one listed)
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { serve } from './support.mjs';

// A context that a test can overrun quickly.
const server = process.env.FATHOM_BASE_URL ? null : await serve({ options: ['--max-model-len', '4096'] });
after(() => server?.stop());
const baseURL = process.env.FATHOM_BASE_URL ?? server.baseURL;
const client = new OpenAI({ baseURL, apiKey: process.env.FATHOM_API_KEY ?? 'none', maxRetries: 0,
  timeout: 120_000 });
const product = 'What is 17*19? Return only the final integer.';
const noThinking = { chat_template_kwargs: { thinking: false } };
let model = process.env.FATHOM_MODEL;
let maxModelLen = 0;

before(async () => {
  const models = await client.models.list();
  model ??= models.data[0].id;
  maxModelLen = models.data[0].max_model_len;
});

// One streamed turn: appends question and answer to `messages` and checks the order of the chunks.
async function streamTurn(messages, question, extra = noThinking) {
  messages.push({ role: 'user', content: question });
  const stream = await client.chat.completions.create({
    model, messages, stream: true, stream_options: { include_usage: true }, temperature: 0,
    max_tokens: 400, ...extra });
  const turn = { content: '', reasoning: '', finishReasons: [], usage: null };
  const ids = new Set();
  let count = 0;
  for await (const chunk of stream) {
    ids.add(chunk.id);
    assert.equal(chunk.object, 'chat.completion.chunk');
    assert.equal(turn.usage, null, 'nothing may follow the usage');
    if (chunk.choices.length === 0) {
      turn.usage = chunk.usage;
      continue;
    }
    const { delta, finish_reason: finishReason } = chunk.choices[0];
    assert.equal(turn.finishReasons.length, 0, 'nothing but usage may follow the end');
    if (count++ === 0) assert.equal(delta.role, 'assistant');
    else assert.ok(!('role' in delta));
    assert.ok(!(delta.content && delta.reasoning), 'one kind per chunk');
    if (delta.reasoning) assert.equal(turn.content, '', 'reasoning comes before content');
    assert.equal(delta.reasoning, delta.reasoning_content);
    turn.content += delta.content ?? '';
    turn.reasoning += delta.reasoning ?? '';
    if (finishReason) turn.finishReasons.push(finishReason);
  }
  assert.equal(ids.size, 1);
  assert.deepEqual(turn.finishReasons, ['stop']);
  assert.ok(turn.usage.prompt_tokens > 0 && turn.usage.completion_tokens > 0);
  assert.equal(turn.usage.total_tokens, turn.usage.prompt_tokens + turn.usage.completion_tokens);
  messages.push({ role: 'assistant', content: turn.content });
  return turn;
}

test('lists and retrieves models', async () => {
  const models = await client.models.list();
  assert.ok(models.data.some((entry) => entry.id === model));
  assert.equal((await client.models.retrieve(model)).id, model);
  assert.ok(maxModelLen > 0);
});

test('a plain answer', async () => {
  const answer = await client.chat.completions.create({
    model, messages: [{ role: 'user', content: product }], temperature: 0, ...noThinking });
  assert.equal(answer.object, 'chat.completion');
  assert.equal(answer.model, model);
  assert.match(answer.choices[0].message.content, /323/);
  assert.equal(answer.choices[0].finish_reason, 'stop');
  assert.ok(!answer.choices[0].message.reasoning);
  assert.equal(answer.usage.completion_tokens_details.reasoning_tokens, 0);
});

test('thinking gives reasoning, then content', async () => {
  const answer = await client.chat.completions.create({
    model, messages: [{ role: 'user', content: product }], temperature: 0, reasoning_effort: 'high' });
  const { message } = answer.choices[0];
  assert.ok(message.reasoning.length > 0);
  assert.equal(message.reasoning_content, message.reasoning);
  assert.match(message.content, /323/);
  assert.ok(answer.usage.completion_tokens_details.reasoning_tokens > 0);

  const turn = await streamTurn([], product, { reasoning_effort: 'high' });
  assert.equal(turn.reasoning, message.reasoning);
  assert.equal(turn.content, message.content);
});

test('a streamed conversation of several turns', async () => {
  const messages = [];
  const hello = await streamTurn(messages, 'Hello!');
  assert.ok(hello.content.length > 0);
  assert.match((await streamTurn(messages, product)).content, /323/);
  const last = await streamTurn(messages, 'Reverse the order of these words: stone, river, cloud');
  assert.match(last.content, /cloud.*river.*stone/s);
  assert.ok(last.usage.prompt_tokens > hello.usage.prompt_tokens);
});

test('the stream helper puts the answer together', async () => {
  const helper = client.chat.completions.stream({
    model, messages: [{ role: 'user', content: product }], temperature: 0, ...noThinking });
  const answer = await helper.finalChatCompletion();
  assert.match(answer.choices[0].message.content, /323/);
});

test('log-probabilities', async () => {
  const answer = await client.chat.completions.create({
    model, messages: [{ role: 'user', content: product }], temperature: 0, logprobs: true,
    top_logprobs: 2, ...noThinking });
  const entries = answer.choices[0].logprobs.content;
  assert.equal(entries.length, answer.usage.completion_tokens);
  for (const entry of entries) {
    assert.ok(entry.logprob <= 0);
    assert.equal(entry.top_logprobs.length, 2);
    assert.ok(entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob);
  }
});

test('completions, whole and streamed', async () => {
  const request = { model, prompt: 'Once upon a time', temperature: 0, max_tokens: 16 };
  const whole = await client.completions.create(request);
  assert.equal(whole.object, 'text_completion');
  assert.ok(whole.choices[0].text.length > 0);
  let text = '';
  for await (const chunk of await client.completions.create({ ...request, stream: true })) {
    text += chunk.choices[0]?.text ?? '';
  }
  assert.equal(text, whole.choices[0].text);
});

test('stop strings', async () => {
  const request = { model, prompt: 'Once upon a time', temperature: 0, max_tokens: 40 };
  const whole = (await client.completions.create(request)).choices[0].text;
  const stop = whole.slice(5, 8);
  const choice = (await client.completions.create({ ...request, stop: [stop] })).choices[0];
  assert.equal(choice.text, whole.slice(0, whole.indexOf(stop)));
  assert.equal(choice.finish_reason, 'stop');
  assert.equal(choice.stop_reason, stop);
});

test('errors become the typed errors of the client', async () => {
  const messages = [{ role: 'user', content: 'x' }];
  const create = (fields) => client.chat.completions.create({ model, messages, ...fields });
  await assert.rejects(create({ temperature: 3 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.status, 400);
    assert.equal(error.param, 'temperature');
    return true;
  });
  await assert.rejects(create({ messages: [] }), (error) =>
    error instanceof OpenAI.BadRequestError && error.param === 'messages');
  await assert.rejects(create({ model: 'no-such-model' }), (error) =>
    error instanceof OpenAI.NotFoundError && error.param === 'model');
});

test('a prompt beyond the context', async (t) => {
  if (maxModelLen > 200_000) return t.skip('the context is too long to overrun quickly');
  const prompt = new Array(maxModelLen).fill(5);
  await assert.rejects(client.completions.create({ model, prompt }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, 'context_length_exceeded');
    assert.match(error.message, /maximum context length/);
    return true;
  });
});

test('aborting a stream frees the server for the next request', async () => {
  const stream = await client.chat.completions.create({
    model, messages: [{ role: 'user', content: 'Tell me a story about a fox in a forest.' }],
    stream: true, ignore_eos: true, ...noThinking });
  let chunks = 0;
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    if (++chunks === 4) stream.controller.abort();
  }
  assert.ok(chunks >= 4);
  // Without the abort this would wait until the context is full.
  const answer = await client.chat.completions.create({
    model, messages: [{ role: 'user', content: product }], temperature: 0, ...noThinking });
  assert.match(answer.choices[0].message.content, /323/);
});
