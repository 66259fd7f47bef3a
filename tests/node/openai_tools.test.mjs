// The official openai client as agents use it: chat with tools, reasoning, errors and aborts.
// openai_client.test.mjs has the rest of chat and completions.
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
const tools = [{ type: 'function', function: { name, description, parameters } }];
const ask = (content, more = {}) =>
  ({ model: 'fathom-nano', messages: [{ role: 'user', content }], temperature: 0, ...more });

// A stream as one message, with what must hold for every stream of chunks.
async function collect(stream) {
  const message = { reasoning: '', content: '', calls: [], finish: null, usage: null, deltas: 0 };
  for await (const { choices, usage } of stream) {
    message.usage = usage ?? message.usage;
    if (choices.length === 0) continue;
    const { delta, finish_reason: finish } = choices[0];
    const kinds = [delta.reasoning, delta.content, delta.tool_calls?.length].filter(Boolean);
    assert.ok(kinds.length <= 1, 'one kind per chunk');
    message.reasoning += delta.reasoning ?? '';
    message.content += delta.content ?? '';
    for (const { index, id, type, function: part } of delta.tool_calls ?? []) {
      if (id) {
        assert.equal(index, message.calls.length);
        assert.equal(type, 'function');
        message.calls.push({ id, name: part.name, arguments: '', pieces: 0 });
      }
      message.calls[index].arguments += part.arguments;
      if (part.arguments) message.calls[index].pieces++;
    }
    message.deltas += kinds.length;
    message.finish = finish ?? message.finish;
  }
  return message;
}

for (const thinking of [true, false]) {
  test(`fathom-nano calls a tool and uses its result, thinking ${thinking}`, async () => {
    const request = ask(weather.question, { tools, chat_template_kwargs: { thinking } });
    const { messages } = request;
    const first = await real.chat.completions.create(request);
    const { message, finish_reason: finish } = first.choices[0];
    assert.equal(finish, 'tool_calls');
    assert.equal(message.content, null);
    assert.equal(Boolean(message.reasoning), thinking);
    assert.equal(message.tool_calls.length, 1);
    const [call] = message.tool_calls;
    assert.equal(call.function.name, 'get_weather');
    assert.deepEqual(JSON.parse(call.function.arguments), { location: 'Toronto' });

    const streamed = await collect(await real.chat.completions.create({ ...request, stream: true,
      stream_options: { include_usage: true } }));
    assert.equal(streamed.calls[0].arguments, call.function.arguments);
    assert.equal(streamed.finish, 'tool_calls');
    assert.equal(streamed.usage.completion_tokens, first.usage.completion_tokens);
    assert.equal(streamed.usage.completion_tokens_details.reasoning_tokens > 0, thinking);

    // The client's own message goes back as it came, reasoning included.
    messages.push(message, { role: 'tool', tool_call_id: call.id, content: weather.result });
    const second = await real.chat.completions.create(request);
    assert.equal(second.choices[0].message.content, weather.answer);
    assert.equal(second.choices[0].finish_reason, 'stop');
    // The second prompt continues the first answer, so nearly all of it is in the cache.
    const { prompt_tokens: prompt, prompt_tokens_details: details } = second.usage;
    assert.ok(details.cached_tokens >= first.usage.prompt_tokens, `${details.cached_tokens} of ${prompt} cached`);
    assert.equal(second.usage.prompt_cache_hit_tokens + second.usage.prompt_cache_miss_tokens, prompt);
  });
}

test('fathom-nano calls twice in one turn', async () => {
  const answer = await real.chat.completions.create(ask('What is the weather in Paris and in Rome?',
    { tools, chat_template_kwargs: { thinking: false } }));
  const calls = answer.choices[0].message.tool_calls;
  assert.deepEqual(calls.map((call) => JSON.parse(call.function.arguments).location), ['Paris', 'Rome']);
  assert.notEqual(calls[0].id, calls[1].id);
});

test('fathom-nano under tool_choice', async () => {
  const hello = (toolChoice) => real.chat.completions.create(
    ask('Hello!', { tools, tool_choice: toolChoice, chat_template_kwargs: { thinking: false } }));
  const none = (await hello('none')).choices[0];
  assert.ok(none.message.content.length > 0 && !none.message.tool_calls);
  const named = (await hello({ type: 'function', function: { name } })).choices[0];
  assert.equal(named.message.tool_calls[0].function.name, name);
  assert.equal(named.finish_reason, 'stop');
  const required = (await hello('required')).choices[0];
  assert.equal(required.message.tool_calls[0].function.name, name);
  assert.equal(typeof JSON.parse(required.message.tool_calls[0].function.arguments).location, 'string');
});

test('the runTools helper goes round the loop by itself', async () => {
  const asked = [];
  const runner = real.chat.completions.runTools(ask(weather.question, { tools: [{ type: 'function',
    function: { name, description, parameters, parse: JSON.parse,
      function: (args) => { asked.push(args); return weather.result; } } }] }));
  assert.equal(await runner.finalContent(), weather.answer);
  assert.deepEqual(asked, [{ location: 'Toronto' }]);
});

test('reasoning of earlier turns may be sent back under either name', async () => {
  for (const field of ['reasoning', 'reasoning_content']) {
    const answer = await real.chat.completions.create({ model: 'fathom-nano', temperature: 0, messages: [
      { role: 'user', content: 'What is 17*19? Return only the final integer.' },
      { role: 'assistant', content: '323', [field]: 'I need to compute 17 * 19. The answer is 323.' },
      { role: 'user', content: 'What is 9-1? Answer with just the number.' }] });
    assert.match(answer.choices[0].message.content, /8/);
  }
});

test('scripted texts arrive to the letter, whole and streamed', async () => {
  const request = ask('SCENE plain');
  const whole = (await replay.chat.completions.create(request)).choices[0].message;
  assert.equal(whole.content, texts.content);
  assert.equal(whole.reasoning, texts.reasoning);
  assert.equal(whole.reasoning_content, texts.reasoning);
  const streamed = await collect(await replay.chat.completions.create(
    { ...request, stream: true, stream_options: { include_usage: true } }));
  assert.equal(streamed.content, texts.content);
  assert.equal(streamed.reasoning, texts.reasoning);
  assert.equal(streamed.usage.prompt_tokens_details.cached_tokens, 3);
});

test('reasoning, content and two calls in one answer, then their results', async () => {
  const request = ask('SCENE tools', { tools });
  const whole = (await replay.chat.completions.create(request)).choices[0];
  assert.equal(whole.finish_reason, 'tool_calls');
  assert.equal(whole.message.reasoning, texts.reasoning);
  assert.equal(whole.message.content, texts.moment);
  const cities = (calls) => calls.map((call) => JSON.parse(call.arguments).location);
  assert.deepEqual(cities(whole.message.tool_calls.map((call) => call.function)), texts.cities);

  const streamed = await collect(await replay.chat.completions.create({ ...request, stream: true }));
  assert.equal(streamed.finish, 'tool_calls');
  assert.equal(streamed.content, texts.moment);
  assert.deepEqual(cities(streamed.calls), texts.cities);
  // Arguments come as the model writes them, not at the end of the call.
  assert.ok(streamed.calls[1].pieces > 3, `${streamed.calls[1].pieces} pieces`);
  assert.deepEqual(streamed.calls.map((call) => call.arguments),
    whole.message.tool_calls.map((call) => call.function.arguments));

  // The stream helper puts calls together from their pieces.
  const helper = replay.chat.completions.stream(request);
  const { message } = (await helper.finalChatCompletion()).choices[0];
  assert.equal(message.content, texts.moment);
  assert.deepEqual(cities(message.tool_calls.map((call) => call.function)), texts.cities);

  request.messages.push(whole.message, ...whole.message.tool_calls.map((call, i) =>
    ({ role: 'tool', tool_call_id: call.id, content: `${[4, 9][i]} degrees` })));
  const last = (await replay.chat.completions.create(request)).choices[0];
  assert.equal(last.message.content, texts.final);
  assert.equal(last.message.reasoning, 'Two results.');

  const single = await replay.chat.completions.create({ ...ask('SCENE tools', { tools }), parallel_tool_calls: false });
  assert.equal(single.choices[0].message.tool_calls.length, 1);
});

test('tokens are passed on when they come, and an abort ends the request on the server', async () => {
  const stream = await replay.chat.completions.create(ask('SCENE endless', { stream: true }));
  let chunks = 0;
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    if (++chunks === 5) break;  // leaving the loop aborts
  }
  await expectIdle(scenes);

  const whole = new AbortController();
  const answer = replay.chat.completions.create(ask('SCENE endless'), { signal: whole.signal });
  setTimeout(() => whole.abort(), 200);
  await assert.rejects(answer, OpenAI.APIUserAbortError);
  await expectIdle(scenes);

  const story = await real.chat.completions.create(
    ask('Tell me a story about a fox in a forest.', { stream: true, ignore_eos: true }));
  for await (const chunk of story) {
    if (chunk.choices[0]?.delta) story.controller.abort();
  }
  await expectIdle(nano);
});

test('a failure in mid-stream is the client\'s error, after what came before it', async () => {
  let content = '';
  await assert.rejects(async () => {
    const stream = await replay.chat.completions.create(
      ask('SCENE broken', { stream: true, chat_template_kwargs: { thinking: false } }));
    for await (const chunk of stream) content += chunk.choices[0]?.delta.content ?? '';
  }, (error) => error instanceof OpenAI.APIError && /engine failed/.test(error.message));
  assert.ok(content.length > 0 && 'This sentence will not be finished.'.startsWith(content));
  await assert.rejects(replay.chat.completions.create(ask('SCENE broken')), OpenAI.InternalServerError);
  await expectIdle(scenes);
});

test('an answer that is cut says so', async () => {
  const answer = await replay.chat.completions.create(ask('SCENE cut'));
  assert.equal(answer.choices[0].finish_reason, 'length');
});

test('errors become the typed errors of the client', async () => {
  const bad = { ...ask('x'), tools: [{ type: 'function', function: { parameters: {} } }] };
  await assert.rejects(replay.chat.completions.create(bad), (error) =>
    error instanceof OpenAI.BadRequestError && /^tools/.test(error.param));
  await assert.rejects(replay.chat.completions.create({ ...ask('x'), model: 'no-such-model' }), (error) =>
    error instanceof OpenAI.NotFoundError && error.param === 'model');
  const stranger = new OpenAI({ baseURL: scenes.baseURL, apiKey: 'wrong', ...options });
  await assert.rejects(stranger.chat.completions.create(ask('x')), OpenAI.AuthenticationError);
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  await assert.rejects(replay.chat.completions.create(ask('SCENE full')), (error) =>
    error.status === 503 && Number(error.headers.get('retry-after')) > 0);
});
